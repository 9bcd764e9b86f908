// Members of groups by franz-go that print a journal: `franz_journal BOOTSTRAP TOPIC`, then `join NAME KIND GROUP`, with
// KIND consumer or share, and `close NAME`. Times are those of CLOCK_MONOTONIC, in ns.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type fields map[string]any

type member struct {
	name, kind, group, topic string
	client                   *kgo.Client
	positions                map[int32]int64
	owned                    map[int32]bool
	leaving                  bool

	mu      sync.Mutex
	results map[int32]error
}

var printing sync.Mutex

func nowNs() int64 {
	var at syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(&at)), 0)
	return at.Nano()
}

func (m *member) note(kind string, more fields) {
	line := fields{"at": nowNs(), "m": m.name, "kind": kind}
	for name, value := range more {
		line[name] = value
	}
	printing.Lock()
	defer printing.Unlock()
	text, _ := json.Marshal(line)
	fmt.Println(string(text))
}

func (m *member) options() []kgo.Opt {
	return []kgo.Opt{
		kgo.SeedBrokers(strings.Split(os.Args[1], ",")...), kgo.ClientID(m.name), kgo.ConsumeTopics(m.topic),
	}
}

func (m *member) consume(ctx context.Context) error {
	drop := func(kind string, gone []int32) {
		for _, index := range gone {
			delete(m.positions, index)
			delete(m.owned, index)
		}
		m.note(kind, fields{"partitions": append([]int32{}, gone...)})
	}
	client, err := kgo.NewClient(append(m.options(),
		kgo.ConsumerGroup(m.group),
		kgo.ServerSideBalancer(),
		kgo.Balancers(kgo.StickyBalancer()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(func(_ context.Context, client *kgo.Client, got map[string][]int32) {
			if len(got[m.topic]) == 0 {
				return
			}
			for _, index := range got[m.topic] {
				m.owned[index] = true
			}
			id, epoch := client.GroupMetadata()
			m.note("assigned", fields{"partitions": got[m.topic], "generation": epoch, "member": id})
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, client *kgo.Client, gone map[string][]int32) {
			if !m.leaving && len(gone[m.topic]) > 0 {
				m.commit(client, gone[m.topic])
				drop("revoked", gone[m.topic])
			}
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, gone map[string][]int32) {
			if len(gone[m.topic]) > 0 {
				drop("lost", gone[m.topic])
			}
		}),
	)...)
	if err != nil {
		return err
	}
	due := time.Now()
	for ctx.Err() == nil {
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		fetches := client.PollFetches(short)
		cancel()
		fetches.EachPartition(func(part kgo.FetchTopicPartition) {
			if len(part.Records) == 0 {
				return
			}
			records := make([][]any, 0, len(part.Records))
			for _, one := range part.Records {
				records = append(records, []any{one.Offset, string(one.Value)})
				m.positions[part.Partition] = one.Offset + 1
			}
			m.note("read", fields{"partition": part.Partition, "records": records})
		})
		if time.Now().After(due) {
			m.commit(client, keys(m.positions))
			due = time.Now().Add(500 * time.Millisecond)
		}
		if ctx.Err() == nil {
			client.AllowRebalance()
		}
	}
	m.leaving = true
	m.commit(client, keys(m.positions))
	m.note("revoked", fields{"partitions": keys(m.owned)})
	client.AllowRebalance()
	client.CloseAllowingRebalance()
	return nil
}

func keys[V any](of map[int32]V) []int32 {
	found := []int32{}
	for index := range of {
		found = append(found, index)
	}
	return found
}

func (m *member) commit(client *kgo.Client, partitions []int32) {
	offsets, named := map[int32]kgo.EpochOffset{}, map[string]int64{}
	for _, index := range partitions {
		if offset, ok := m.positions[index]; ok {
			offsets[index] = kgo.EpochOffset{Epoch: -1, Offset: offset}
			named[fmt.Sprint(index)] = offset
		}
	}
	if len(offsets) == 0 {
		return
	}
	began := nowNs()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	client.CommitOffsetsSync(ctx, map[string]map[int32]kgo.EpochOffset{m.topic: offsets},
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, answer *kmsg.OffsetCommitResponse, err error) {
			var failed any
			if err != nil {
				failed = err.Error()
			} else {
				for _, topic := range answer.Topics {
					for _, one := range topic.Partitions {
						if one.ErrorCode != 0 {
							failed = fmt.Sprintf("code %d", one.ErrorCode)
						}
					}
				}
			}
			m.note("commit", fields{"began": began, "offsets": named, "generation": -1, "error": failed})
		})
}

func (m *member) share(ctx context.Context) error {
	client, err := kgo.NewClient(append(m.options(),
		kgo.ShareGroup(m.group),
		kgo.ShareMaxRecords(50),
		kgo.ShareAckCallback(func(_ *kgo.Client, results kgo.ShareAckResults) {
			m.mu.Lock()
			defer m.mu.Unlock()
			for _, one := range results {
				if before, ok := m.results[one.Partition]; !ok || before == nil {
					m.results[one.Partition] = one.Err
				}
			}
		}),
	)...)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		fetches := client.PollFetches(short)
		cancel()
		m.acknowledge(client, fetches)
	}
	m.note("closing", nil)
	client.Close()
	return nil
}

func (m *member) acknowledge(client *kgo.Client, fetches kgo.Fetches) {
	accepted, released := map[int32][]int64{}, map[int32][]int64{}
	polled := map[int32]bool{}
	m.mu.Lock()
	m.results = map[int32]error{}
	m.mu.Unlock()
	fetches.EachPartition(func(part kgo.FetchTopicPartition) {
		if len(part.Records) == 0 {
			return
		}
		records := [][]any{}
		for _, one := range part.Records {
			records = append(records, []any{one.Offset, string(one.Value), one.DeliveryCount()})
		}
		m.note("delivered", fields{"partition": part.Partition, "records": records})
		polled[part.Partition] = true
		for _, one := range part.Records {
			if one.DeliveryCount() < 3 && rand.Intn(20) == 0 {
				one.Ack(kgo.AckRelease)
				released[part.Partition] = append(released[part.Partition], one.Offset)
			} else {
				one.Ack(kgo.AckAccept)
				accepted[part.Partition] = append(accepted[part.Partition], one.Offset)
			}
		}
	})
	if len(polled) == 0 {
		return
	}
	began := nowNs()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	flushed := client.FlushAcks(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	for index := range polled {
		var failed any
		if result, ok := m.results[index]; flushed != nil || !ok {
			failed = "no answer"
		} else if result != nil {
			failed = result.Error()
		}
		m.note("acknowledged", fields{
			"began": began, "partition": index, "error": failed,
			"accepted": append([]int64{}, accepted[index]...), "released": append([]int64{}, released[index]...),
		})
	}
}

func main() {
	running := map[string]context.CancelFunc{}
	var all sync.WaitGroup
	for input := bufio.NewScanner(os.Stdin); input.Scan(); {
		words := strings.Fields(input.Text())
		if words[0] != "join" {
			running[words[1]]()
			delete(running, words[1])
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		running[words[1]] = cancel
		one := &member{
			name: words[1], kind: words[2], group: words[3], topic: os.Args[2],
			positions: map[int32]int64{}, owned: map[int32]bool{},
		}
		all.Add(1)
		go func() {
			defer all.Done()
			live := one.consume
			if one.kind == "share" {
				live = one.share
			}
			if err := live(ctx); err != nil {
				one.note("died", fields{"error": err.Error()})
				return
			}
			one.note("stopped", nil)
		}()
	}
	for _, cancel := range running {
		cancel()
	}
	all.Wait()
}
