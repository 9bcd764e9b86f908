// Log in and produce one record by franz-go; see package login for the arguments.
package main

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"tidegate/clients/login"
)

func main() {
	login.Report(produce())
}

func produce() (int64, error) {
	options := []kgo.Opt{
		kgo.SeedBrokers(login.Bootstrap),
		kgo.DialTLSConfig(login.TLS()),
		kgo.RecordDeliveryTimeout(10 * time.Second),
		kgo.AllowAutoTopicCreation(),
	}
	user, secret := login.User, login.Secret
	switch login.Mechanism {
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: user, Pass: secret}.AsMechanism()))
	case "SCRAM-SHA-256":
		options = append(options, kgo.SASL(scram.Auth{User: user, Pass: secret}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(scram.Auth{User: user, Pass: secret}.AsSha512Mechanism()))
	case "OAUTHBEARER":
		options = append(options, kgo.SASL(oauth.Auth{Token: secret}.AsMechanism()))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	record := &kgo.Record{Topic: login.Topic, Value: []byte("value")}
	err = client.ProduceSync(context.Background(), record).FirstErr()
	return record.Offset, err
}
