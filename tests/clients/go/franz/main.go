// Members of a group by franz-go: `franz BOOTSTRAP TOPIC GROUP SESSION_MS`.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var saying sync.Mutex

func say(event string, member int, more map[string]any) {
	line := map[string]any{"e": event, "m": member}
	for name, value := range more {
		line[name] = value
	}
	text, _ := json.Marshal(line)
	saying.Lock()
	defer saying.Unlock()
	fmt.Println(string(text))
}

func run(ctx context.Context, number int, mode, instance string) {
	topic := os.Args[2]
	assigned := func(_ context.Context, _ *kgo.Client, got map[string][]int32) {
		say("assigned", number, map[string]any{"p": append([]int32{}, got[topic]...)})
	}
	revoked := func(ctx context.Context, client *kgo.Client, _ map[string][]int32) {
		say("revoked", number, nil) // who listens commits: the library does so only where nobody does
		_ = client.CommitUncommittedOffsets(ctx)
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(os.Args[1], ",")...),
		kgo.ConsumeTopics(topic),
		kgo.ConsumerGroup(os.Args[3]),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.Balancers(kgo.RangeBalancer()),
		kgo.OnPartitionsAssigned(assigned),
		kgo.OnPartitionsRevoked(revoked),
	}
	if session, _ := strconv.Atoi(os.Args[4]); session > 0 {
		options = append(options, kgo.SessionTimeout(time.Duration(session)*time.Millisecond))
	}
	if instance != "" {
		options = append(options, kgo.InstanceID(instance))
	}
	if mode != "auto" {
		options = append(options, kgo.DisableAutoCommit())
	}
	say("joining", number, nil)
	client, err := kgo.NewClient(options...)
	if err != nil {
		say("failed", number, map[string]any{"error": err.Error()})
		return
	}
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		fetches.EachPartition(func(part kgo.FetchTopicPartition) {
			if n := len(part.Records); n > 0 {
				first, last := part.Records[0].Offset, part.Records[n-1].Offset
				say("records", number, map[string]any{"p": part.Partition, "a": first, "b": last, "n": n})
			}
		})
		switch {
		case fetches.NumRecords() == 0:
		case mode == "sync":
			if err := client.CommitUncommittedOffsets(context.Background()); err != nil {
				say("commit_failed", number, map[string]any{"error": err.Error()})
			}
		case mode == "async":
			client.CommitOffsets(context.Background(), client.UncommittedOffsets(), nil)
		}
	}
	began := time.Now()
	_ = client.CommitUncommittedOffsets(context.Background())
	if instance == "" {
		client.LeaveGroup()
	}
	client.Close()
	say("closed", number, map[string]any{"ms": time.Since(began).Milliseconds()})
}

func main() {
	members := map[string]context.CancelFunc{}
	for input := bufio.NewScanner(os.Stdin); input.Scan(); {
		words := append(strings.Fields(input.Text()), "")
		if words[0] != "join" {
			members[words[1]]()
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		members[words[1]] = cancel
		number, _ := strconv.Atoi(words[1])
		go run(ctx, number, words[2], words[3])
	}
}
