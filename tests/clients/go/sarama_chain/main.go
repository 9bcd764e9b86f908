// Consume, transform, produce in transactions by sarama; see tests/support/chains.py for the arguments.
package main

import (
	"context"
	"fmt"
	"io"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

var transactions int

func note(what, transaction string, words ...string) {
	fmt.Println(what, transaction, time.Now().UnixNano(), strings.Join(words, " "))
}

// The claims share one producer, so one transaction at a time.
type chain struct {
	producer sarama.AsyncProducer
	aborted  float64
	batch    int
	mutex    sync.Mutex
	draw     *rand.Rand
}

func (c *chain) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (c *chain) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (c *chain) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		records := c.read(session.Context(), claim)
		if len(records) == 0 {
			return nil
		}
		if err := c.transaction(records); err != nil {
			return err
		}
	}
}

// read waits for a first record, then takes what is there already.
func (c *chain) read(ctx context.Context, claim sarama.ConsumerGroupClaim) []*sarama.ConsumerMessage {
	var records []*sarama.ConsumerMessage
	select {
	case message, open := <-claim.Messages():
		if !open {
			return nil
		}
		records = append(records, message)
	case <-ctx.Done():
		return nil
	}
	linger := time.After(20 * time.Millisecond)
	for len(records) < c.batch {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return records
			}
			records = append(records, message)
		case <-linger:
			return records
		}
	}
	return records
}

// transaction repeats a transaction that is aborted on purpose; any error ends the claim, whose offsets are read again.
func (c *chain) transaction(records []*sarama.ConsumerMessage) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	producer := c.producer
	for {
		if err := producer.BeginTxn(); err != nil {
			return err
		}
		name := fmt.Sprintf("%s-%d", os.Args[5], transactions)
		transactions++
		var made []*sarama.ProducerMessage
		var words []string
		for _, one := range records {
			value, _ := strconv.Atoi(string(one.Value))
			made = append(made, &sarama.ProducerMessage{
				Topic: os.Args[3], Partition: one.Partition, Key: sarama.StringEncoder(name),
				Value: sarama.StringEncoder(strconv.Itoa(2 * value)),
			})
			words = append(words, fmt.Sprintf("%d:%d", one.Partition, 2*value))
		}
		note("begin", name, words...)
		for _, one := range made {
			producer.Input() <- one
		}
		last := records[len(records)-1]
		if err := producer.AddMessageToTxn(last, os.Args[4], nil); err != nil {
			return err
		}
		if c.draw.Float64() >= c.aborted {
			note("end", name, "commit")
			err := producer.CommitTxn()
			if err == nil {
				note("ended", name, "commit")
			}
			return err
		}
		note("end", name, "abort")
		if err := producer.AbortTxn(); err != nil {
			return err
		}
		note("ended", name, "abort")
	}
}

func main() {
	seed, _ := strconv.ParseInt(os.Args[6], 10, 64)
	aborted, _ := strconv.ParseFloat(os.Args[7], 64)
	batch, _ := strconv.Atoi(os.Args[8])
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Errors = false
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Net.MaxOpenRequests = 1
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.ReadAll(os.Stdin)
		cancel()
	}()
	handler := &chain{aborted: aborted, batch: batch, draw: rand.New(rand.NewSource(seed))}
	for ctx.Err() == nil {
		if err := member(ctx, config, handler); err != nil {
			fmt.Println("begins again:", err)
		}
	}
}

// member runs until a rebalance or an error; the producer is first, so that what an earlier one left open ends before
// offsets are read.
func member(ctx context.Context, config *sarama.Config, handler *chain) error {
	brokers := strings.Split(os.Args[1], ",")
	config.Producer.Transaction.ID = os.Args[5]
	producer, err := sarama.NewAsyncProducer(brokers, config)
	if err != nil {
		return err
	}
	defer producer.Close()
	group, err := sarama.NewConsumerGroup(brokers, os.Args[4], config)
	if err != nil {
		return err
	}
	defer group.Close()
	handler.producer = producer
	return group.Consume(ctx, []string{os.Args[2]}, handler)
}
