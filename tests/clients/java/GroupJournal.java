import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

/**
 * Members of groups, and producers, that print a journal: `java GroupJournal BOOTSTRAP TOPIC`, then
 * `join NAME KIND GROUP [CONFIG=VALUE ...]`, `write NAME PARTITIONS` and `close NAME`.
 */
public final class GroupJournal {
    private static String bootstrap, topic;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        topic = args[1];
        Map<String, Member> members = new HashMap<>();
        Scanner commands = new Scanner(System.in);
        while (commands.hasNextLine()) {
            String[] words = commands.nextLine().split(" ");
            if (words[0].equals("close")) {
                members.remove(words[1]).leaving = true;
                continue;
            }
            Member member = words[0].equals("write") ? new Writer(words)
                : words[2].equals("share") ? new ShareMember(words) : new ConsumerMember(words);
            members.put(words[1], member);
            member.start();
        }
        for (Member member : members.values()) member.leaving = true;
        for (Member member : members.values()) member.join();
        System.exit(0);
    }

    abstract static class Member extends Thread {
        final String[] words;
        final String name;
        final Random random = new Random();
        volatile boolean leaving;

        Member(String[] words) {
            this.words = words;
            name = words[1];
        }

        /** One line of the journal; the clock is CLOCK_MONOTONIC. */
        void note(String entry, String more) {
            synchronized (System.out) {
                System.out.println("{\"at\":" + System.nanoTime() + ",\"m\":\"" + name + "\",\"kind\":\"" + entry + "\"" + more + "}");
                System.out.flush();
            }
        }

        Properties config() {
            Properties config = new Properties();
            config.put("bootstrap.servers", bootstrap);
            config.put("group.id", words[3]);
            config.put("client.id", name);
            config.put("key.deserializer", ByteArrayDeserializer.class.getName());
            config.put("value.deserializer", StringDeserializer.class.getName());
            return config;
        }

        abstract void live() throws Exception;

        @Override
        public void run() {
            try {
                live();
                note("stopped", "");
            } catch (Throwable error) {
                note("died", ",\"error\":\"" + error.toString().replaceAll("[\"\\\\\\n]", "'") + "\"");
            }
        }
    }

    static final class ConsumerMember extends Member implements ConsumerRebalanceListener {
        private static final long COMMIT_EVERY_NS = 500_000_000L, FETCH_EVERY_NS = 1_500_000_000L;
        private final Map<TopicPartition, Long> positions = new HashMap<>();
        private final boolean isClassic;
        private KafkaConsumer<byte[], String> consumer;
        private boolean closing;

        ConsumerMember(String[] words) {
            super(words);
            isClassic = words[2].equals("classic");
        }

        @Override
        void live() {
            Properties config = config();
            config.put("auto.offset.reset", "earliest");
            config.put("enable.auto.commit", "false");
            config.put("group.protocol", words[2]);
            if (isClassic) config.put("partition.assignment.strategy", RangeAssignor.class.getName());
            for (String pair : Arrays.asList(words).subList(4, words.length)) {
                String[] sides = pair.split("=");
                config.put(sides[0], sides[1]);
            }
            consumer = new KafkaConsumer<>(config);
            consumer.subscribe(List.of(topic), this);
            long due = System.nanoTime(), fetchDue = due + FETCH_EVERY_NS;
            while (!leaving) {
                long began = System.nanoTime();
                ConsumerRecords<byte[], String> polled = consumer.poll(Duration.ofMillis(100));
                for (TopicPartition at : polled.partitions()) {
                    StringJoiner records = new StringJoiner(",");
                    for (var one : polled.records(at)) {
                        records.add("[" + one.offset() + ",\"" + one.value() + "\"]");
                        positions.put(at, one.offset() + 1);
                    }
                    note("read", ",\"began\":" + began + ",\"partition\":" + at.partition() + ",\"records\":[" + records + "]");
                }
                if (System.nanoTime() > due) {
                    commit(positions.keySet());
                    due = System.nanoTime() + COMMIT_EVERY_NS;
                }
                if (System.nanoTime() > fetchDue) {
                    fetchCommitted(consumer.assignment());
                    fetchDue = System.nanoTime() + FETCH_EVERY_NS;
                }
            }
            closing = true;
            Set<TopicPartition> owned = consumer.assignment();
            commit(owned);
            note("revoked", ",\"partitions\":" + numbers(owned));
            consumer.close();
        }

        private void commit(Collection<TopicPartition> partitions) {
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            StringJoiner named = new StringJoiner(",");
            for (TopicPartition at : partitions) {
                if (!positions.containsKey(at)) continue;
                offsets.put(at, new OffsetAndMetadata(positions.get(at)));
                named.add("\"" + at.partition() + "\":" + positions.get(at));
            }
            if (offsets.isEmpty()) return;
            long began = System.nanoTime();
            int generation = consumer.groupMetadata().generationId();
            String error = "null";
            try {
                consumer.commitSync(offsets);
            } catch (KafkaException failed) {
                error = "\"" + failed.getClass().getSimpleName() + "\"";
            }
            boolean isKnown = isClassic && consumer.groupMetadata().generationId() == generation;
            note("commit", ",\"began\":" + began + ",\"offsets\":{" + named + "},\"generation\":"
                + (isKnown ? generation : -1) + ",\"error\":" + error);
        }

        private void fetchCommitted(Set<TopicPartition> partitions) {
            if (partitions.isEmpty()) return;
            StringJoiner named = new StringJoiner(",");
            long began = System.nanoTime();
            try {
                for (var one : consumer.committed(partitions).entrySet())
                    named.add("\"" + one.getKey().partition() + "\":" + (one.getValue() == null ? -1 : one.getValue().offset()));
            } catch (KafkaException failed) {
                return;
            }
            note("committed", ",\"began\":" + began + ",\"offsets\":{" + named + "}");
        }

        private static List<Integer> numbers(Collection<TopicPartition> partitions) {
            return partitions.stream().map(TopicPartition::partition).sorted().toList();
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            ConsumerGroupMetadata now = consumer.groupMetadata();
            note("assigned", ",\"partitions\":" + numbers(partitions) + ",\"generation\":" + now.generationId()
                + ",\"member\":\"" + now.memberId() + "\"");
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            if (closing) return;
            commit(partitions);
            positions.keySet().removeAll(partitions);
            note("revoked", ",\"partitions\":" + numbers(partitions));
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            positions.keySet().removeAll(partitions);
            note("lost", ",\"partitions\":" + numbers(partitions));
        }
    }

    /** Numbered values into the partitions in turn; idempotent with five requests in flight, as producers are by default. */
    static final class Writer extends Member {
        private static final int IN_FLIGHT_MAX = 400;
        private final Semaphore permits = new Semaphore(IN_FLIGHT_MAX);

        Writer(String[] words) {
            super(words);
        }

        @Override
        void live() throws InterruptedException {
            int partitions = Integer.parseInt(words[2]);
            Properties config = new Properties();
            config.put("bootstrap.servers", bootstrap);
            config.put("client.id", name);
            config.put("linger.ms", "2");
            config.put("request.timeout.ms", "10000");
            try (KafkaProducer<String, String> producer =
                     new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
                for (int number = 0; !leaving; number++) {
                    Thread.sleep(10);
                    permits.acquire();
                    int partition = number % partitions;
                    String value = name + ":" + partition + ":" + number / partitions;
                    long began = System.nanoTime();
                    producer.send(new ProducerRecord<>(topic, partition, null, value), (stored, error) -> {
                        permits.release();
                        note("sent", ",\"began\":" + began + ",\"partition\":" + partition + ",\"value\":\"" + value
                            + "\",\"offset\":" + (error == null ? stored.offset() : -1) + ",\"error\":"
                            + (error == null ? "null" : "\"" + error.getClass().getSimpleName() + "\""));
                    });
                }
            }
        }
    }

    static final class ShareMember extends Member {
        ShareMember(String[] words) {
            super(words);
        }

        @Override
        void live() {
            Properties config = config();
            config.put("share.acknowledgement.mode", "explicit");
            config.put("max.poll.records", "50");
            try (KafkaShareConsumer<byte[], String> consumer = new KafkaShareConsumer<>(config)) {
                consumer.subscribe(List.of(topic));
                while (!leaving) take(consumer, consumer.poll(Duration.ofMillis(100)));
                note("closing", "");
            }
        }

        private void take(KafkaShareConsumer<byte[], String> consumer, ConsumerRecords<byte[], String> polled) {
            if (polled.isEmpty()) return;
            Map<Integer, List<Long>> accepted = new HashMap<>(), released = new HashMap<>();
            for (TopicPartition at : polled.partitions()) {
                StringJoiner records = new StringJoiner(",");
                for (var one : polled.records(at))
                    records.add("[" + one.offset() + ",\"" + one.value() + "\"," + one.deliveryCount().get() + "]");
                note("delivered", ",\"partition\":" + at.partition() + ",\"records\":[" + records + "]");
                for (var one : polled.records(at)) {
                    boolean again = one.deliveryCount().get() < 3 && random.nextInt(20) == 0;
                    consumer.acknowledge(one, again ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT);
                    (again ? released : accepted).computeIfAbsent(at.partition(), number -> new ArrayList<>()).add(one.offset());
                }
            }
            long began = System.nanoTime();
            Map<Integer, String> results = new HashMap<>();
            String failure = "\"no answer\"";
            try {
                for (Map.Entry<TopicIdPartition, Optional<KafkaException>> one : consumer.commitSync().entrySet())
                    results.put(one.getKey().partition(),
                        one.getValue().map(error -> "\"" + error.getClass().getSimpleName() + "\"").orElse("null"));
            } catch (KafkaException failed) {
                failure = "\"" + failed.getClass().getSimpleName() + "\"";
            }
            for (TopicPartition at : polled.partitions())
                note("acknowledged", ",\"began\":" + began + ",\"partition\":" + at.partition()
                    + ",\"accepted\":" + accepted.getOrDefault(at.partition(), List.of())
                    + ",\"released\":" + released.getOrDefault(at.partition(), List.of())
                    + ",\"error\":" + results.getOrDefault(at.partition(), failure));
        }
    }
}
