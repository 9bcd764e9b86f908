// Log in and produce one record by sarama; see package login for the arguments.
package main

import (
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"

	"tidegate/clients/login"
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

func main() {
	login.Report(produce())
}

func produce() (int64, error) {
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Producer.Return.Successes = true
	config.Metadata.Retry.Max = 5
	config.Metadata.Retry.Backoff = 500 * time.Millisecond
	config.Net.TLS.Enable = true
	config.Net.TLS.Config = login.TLS()
	if login.Mechanism != "CERTIFICATE" {
		config.Net.SASL.Enable = true
		config.Net.SASL.Mechanism = sarama.SASLMechanism(login.Mechanism)
		config.Net.SASL.User, config.Net.SASL.Password = login.User, login.Secret
	}
	switch login.Mechanism {
	case "SCRAM-SHA-256":
		config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &exchange{hash: scram.SHA256} }
	case "SCRAM-SHA-512":
		config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &exchange{hash: scram.SHA512} }
	case "OAUTHBEARER":
		config.Net.SASL.TokenProvider = token(login.Secret)
	}
	producer, err := sarama.NewSyncProducer([]string{login.Bootstrap}, config)
	if err != nil {
		return 0, err
	}
	defer producer.Close()
	value := sarama.StringEncoder("value")
	_, offset, err := producer.SendMessage(&sarama.ProducerMessage{Topic: login.Topic, Value: value})
	return offset, err
}
