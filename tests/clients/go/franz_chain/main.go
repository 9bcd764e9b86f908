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
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var transactions int

func note(what, transaction string, words ...string) {
	fmt.Println(what, transaction, time.Now().UnixNano(), strings.Join(words, " "))
}

func ending(commit bool) string {
	if commit {
		return "commit"
	}
	return "abort"
}

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
		name := fmt.Sprintf("%s-%d", os.Args[5], transactions)
		transactions++
		var made []*kgo.Record
		var words []string
		fetches.EachRecord(func(one *kgo.Record) {
			value, _ := strconv.Atoi(string(one.Value))
			made = append(made, &kgo.Record{
				Topic: sink, Partition: one.Partition, Key: []byte(name), Value: []byte(strconv.Itoa(2 * value)),
			})
			words = append(words, fmt.Sprintf("%d:%d", one.Partition, 2*value))
		})
		note("begin", name, words...)
		promise := kgo.AbortingFirstErrPromise(session.Client())
		for _, one := range made {
			session.Produce(context.Background(), one, promise.Promise())
		}
		failed := promise.Err() != nil
		commit := !failed && draw.Float64() >= aborted
		note("end", name, ending(commit))
		committed, err := session.End(context.Background(), kgo.TransactionEndTry(commit))
		if err != nil {
			return err
		}
		note("ended", name, ending(committed))
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
