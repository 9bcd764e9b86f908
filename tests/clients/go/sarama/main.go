// Members of a group by sarama: `sarama BOOTSTRAP TOPIC GROUP SESSION_MS`.
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

	"github.com/IBM/sarama"
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

type member struct {
	number int
	mode   string
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	say("assigned", m.number, map[string]any{"p": append([]int32{}, session.Claims()[os.Args[2]]...)})
	return nil
}

func (m *member) Cleanup(session sarama.ConsumerGroupSession) error {
	say("revoked", m.number, nil)
	if m.mode != "auto" {
		session.Commit()
	}
	return nil
}

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			more := map[string]any{"p": message.Partition, "a": message.Offset, "b": message.Offset, "n": 1}
			say("records", m.number, more)
			session.MarkMessage(message, "")
			switch m.mode {
			case "sync":
				session.Commit()
			case "async":
				go session.Commit()
			}
		case <-session.Context().Done():
			return nil
		}
	}
}

func run(ctx context.Context, number int, mode, instance string) {
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = mode == "auto"
	config.Consumer.Group.InstanceId = instance
	if session, _ := strconv.Atoi(os.Args[4]); session > 0 {
		config.Consumer.Group.Session.Timeout = time.Duration(session) * time.Millisecond
		config.Consumer.Group.Heartbeat.Interval = config.Consumer.Group.Session.Timeout / 3
	}
	say("joining", number, nil)
	group, err := sarama.NewConsumerGroup(strings.Split(os.Args[1], ","), os.Args[3], config)
	if err != nil {
		say("failed", number, map[string]any{"error": err.Error()})
		return
	}
	consumed := make(chan struct{})
	go func() {
		defer close(consumed)
		for ctx.Err() == nil {
			if err := group.Consume(ctx, []string{os.Args[2]}, &member{number, mode}); err != nil && ctx.Err() == nil {
				say("failed", number, map[string]any{"error": err.Error()})
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	<-ctx.Done()
	began := time.Now()
	<-consumed
	_ = group.Close()
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
