// Log in and produce one record by sarama: `sarama_login BOOTSTRAP TOPIC CA MECHANISM USER`, secrets in LOGIN_*.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

type token string

func (own token) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: string(own)}, nil
}

type exchange struct {
	hash scram.HashGeneratorFcn
	*scram.ClientConversation
}

func (own *exchange) Begin(user, password, authorization string) error {
	client, err := own.hash.NewClient(user, password, authorization)
	if err == nil {
		own.ClientConversation = client.NewConversation()
	}
	return err
}

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
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Producer.Return.Successes = true
	config.Metadata.Retry.Max = 5
	config.Metadata.Retry.Backoff = 500 * time.Millisecond
	config.Net.TLS.Enable = true
	config.Net.TLS.Config = encrypted(mechanism)
	if mechanism != "CERTIFICATE" {
		config.Net.SASL.Enable = true
		config.Net.SASL.Mechanism = sarama.SASLMechanism(mechanism)
		config.Net.SASL.User, config.Net.SASL.Password = user, secret
	}
	switch mechanism {
	case "SCRAM-SHA-256":
		config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &exchange{hash: scram.SHA256} }
	case "SCRAM-SHA-512":
		config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &exchange{hash: scram.SHA512} }
	case "OAUTHBEARER":
		config.Net.SASL.TokenProvider = token(secret)
	}
	producer, err := sarama.NewSyncProducer([]string{os.Args[1]}, config)
	if err == nil {
		defer producer.Close()
		var offset int64
		_, offset, err = producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("value")})
		if err == nil {
			report(map[string]any{"offset": offset})
			return
		}
	}
	report(map[string]any{"error": err.Error()})
}
