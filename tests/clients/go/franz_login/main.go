// Log in and produce one record by franz-go: `franz_login BOOTSTRAP TOPIC CA MECHANISM USER`, secrets in LOGIN_*.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func report(values map[string]any) {
	text, _ := json.Marshal(values)
	fmt.Println(string(text))
}

func encrypted(mechanism string) *tls.Config {
	authorities := x509.NewCertPool()
	pem, _ := os.ReadFile(os.Args[3])
	authorities.AppendCertsFromPEM(pem)
	config := &tls.Config{RootCAs: authorities}
	if mechanism == "CERTIFICATE" {
		own, err := tls.LoadX509KeyPair(os.Getenv("LOGIN_CERTIFICATE"), os.Getenv("LOGIN_KEY"))
		if err != nil {
			panic(err)
		}
		config.Certificates = []tls.Certificate{own}
	}
	return config
}

func main() {
	topic, mechanism, user, secret := os.Args[2], os.Args[4], os.Args[5], os.Getenv("LOGIN_SECRET")
	options := []kgo.Opt{
		kgo.SeedBrokers(os.Args[1]),
		kgo.DialTLSConfig(encrypted(mechanism)),
		kgo.RecordDeliveryTimeout(10 * time.Second),
		kgo.AllowAutoTopicCreation(),
	}
	switch mechanism {
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
	if err == nil {
		defer client.Close()
		var record *kgo.Record
		record, err = client.ProduceSync(context.Background(), &kgo.Record{Topic: topic, Value: []byte("value")}).First()
		if err == nil {
			report(map[string]any{"offset": record.Offset})
			return
		}
	}
	report(map[string]any{"error": err.Error()})
}
