// Consume, transform, produce in transactions by franz-go; see tests/support/chains.py for the arguments.
package main

import (
	"context"
	"fmt"
	"io"
	"math/rand"
	"os"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

func member(ctx context.Context, draw *rand.Rand, aborted float64, batch int) error {
	sink := os.Args[3]
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(strings.Split(os.Args[1], ",")...),
		kgo.ConsumeTopics(os.Args[2]),
		kgo.ConsumerGroup(os.Args[4]),
		kgo.TransactionalID(os.Args[5]),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RequireStableFetchOffsets(),
	)
	if err != nil {
		return err
	}
	defer session.Close()
	for ctx.Err() == nil {
		fetches := session.PollRecords(ctx, batch)
		if fetches.NumRecords() == 0 {
			continue
		}
		if err := session.Begin(); err != nil {
			return err
		}
		promise := kgo.AbortingFirstErrPromise(session.Client())
		fetches.EachRecord(func(one *kgo.Record) {
			value, _ := strconv.Atoi(string(one.Value))
			made := &kgo.Record{Topic: sink, Partition: one.Partition, Value: []byte(strconv.Itoa(2 * value))}
			session.Produce(context.Background(), made, promise.Promise())
		})
		failed := promise.Err() != nil
		commit := kgo.TransactionEndTry(!failed && draw.Float64() >= aborted)
		if _, err := session.End(context.Background(), commit); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	seed, _ := strconv.ParseInt(os.Args[6], 10, 64)
	aborted, _ := strconv.ParseFloat(os.Args[7], 64)
	batch, _ := strconv.Atoi(os.Args[8])
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.ReadAll(os.Stdin)
		cancel()
	}()
	draw := rand.New(rand.NewSource(seed))
	for ctx.Err() == nil {
		if err := member(ctx, draw, aborted, batch); err != nil {
			fmt.Println("begins again:", err)
		}
	}
}
