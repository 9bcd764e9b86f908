// What sarama writes and reads as a client of an old Kafka: `sarama_old BOOTSTRAP TOPIC VERSION CODEC COUNT`.
//
// It produces COUNT messages with CODEC (0 none, 1 gzip, 2 snappy), then reads the topic's one partition from the start
// and prints each value that it finds until the end of the log, commits the end for the group "sarama-old", and prints
// what is committed.
package main

import (
	"fmt"
	"os"
	"strconv"

	"github.com/IBM/sarama"
)

const group = "sarama-old"

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	brokers, topic := []string{os.Args[1]}, os.Args[2]
	version, err := sarama.ParseKafkaVersion(os.Args[3])
	check(err)
	codec, err := strconv.Atoi(os.Args[4])
	check(err)
	count, err := strconv.Atoi(os.Args[5])
	check(err)

	config := sarama.NewConfig()
	config.Version = version
	config.ApiVersionsRequest = false
	config.Producer.Compression = sarama.CompressionCodec(codec)
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Consumer.Offsets.AutoCommit.Enable = false
	client, err := sarama.NewClient(brokers, config)
	check(err)
	defer client.Close()

	producer, err := sarama.NewSyncProducerFromClient(client)
	check(err)
	messages := make([]*sarama.ProducerMessage, count)
	for n := range messages {
		value := fmt.Sprintf("sarama-%d-%d", codec, n)
		messages[n] = &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(value)}
	}
	check(producer.SendMessages(messages))

	end, err := client.GetOffset(topic, 0, sarama.OffsetNewest)
	check(err)
	start, err := client.GetOffset(topic, 0, sarama.OffsetOldest)
	check(err)
	consumer, err := sarama.NewConsumerFromClient(client)
	check(err)
	partition, err := consumer.ConsumePartition(topic, 0, start)
	check(err)
	for offset := start; offset < end; offset++ {
		message := <-partition.Messages()
		fmt.Println(message.Offset, string(message.Value))
	}

	offsets, err := sarama.NewOffsetManagerFromClient(group, client)
	check(err)
	manager, err := offsets.ManagePartition(topic, 0)
	check(err)
	manager.MarkOffset(end, "")
	offsets.Commit()
	manager.AsyncClose()
	check(offsets.Close())
	again, err := sarama.NewOffsetManagerFromClient(group, client)
	check(err)
	manager, err = again.ManagePartition(topic, 0)
	check(err)
	committed, _ := manager.NextOffset()
	fmt.Println("committed", committed)
}
