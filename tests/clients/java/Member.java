import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Scanner;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Members of a group by Apache Kafka's consumer: `java Member.java BOOTSTRAP TOPIC GROUP SESSION_MS`. */
public class Member implements Runnable, ConsumerRebalanceListener {
    private static String bootstrap, topic, group, sessionMs;

    private final int number;
    private final String mode;
    private final String instance;
    private volatile boolean leaving;
    private KafkaConsumer<byte[], byte[]> consumer;

    private Member(int number, String mode, String instance) {
        this.number = number;
        this.mode = mode;
        this.instance = instance;
    }

    public static void main(String[] args) {
        bootstrap = args[0];
        topic = args[1];
        group = args[2];
        sessionMs = args[3];
        Map<Integer, Member> members = new HashMap<>();
        Scanner commands = new Scanner(System.in);
        while (commands.hasNextLine()) {
            String[] words = commands.nextLine().split(" ");
            int number = Integer.parseInt(words[1]);
            if (words[0].equals("join")) {
                Member member = new Member(number, words[2], words.length > 3 ? words[3] : "");
                members.put(number, member);
                new Thread(member).start();
            } else {
                members.remove(number).leaving = true;
            }
        }
        System.exit(0);
    }

    private synchronized static void say(String event, int number, String more) {
        System.out.println("{\"e\":\"" + event + "\",\"m\":" + number + more + "}");
        System.out.flush();
    }

    @Override
    public void run() {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("group.id", group);
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", String.valueOf(mode.equals("auto")));
        config.put("key.deserializer", ByteArrayDeserializer.class.getName());
        config.put("value.deserializer", ByteArrayDeserializer.class.getName());
        if (!sessionMs.equals("0")) config.put("session.timeout.ms", sessionMs);
        if (!instance.isEmpty()) config.put("group.instance.id", instance);
        consumer = new KafkaConsumer<>(config);
        say("joining", number, "");
        consumer.subscribe(List.of(topic), this);
        while (!leaving) take(consumer.poll(Duration.ofMillis(100)));
        long began = System.nanoTime();
        if (!mode.equals("auto")) commit();
        consumer.close();
        say("closed", number, ",\"ms\":" + (System.nanoTime() - began) / 1_000_000);
    }

    private void take(ConsumerRecords<byte[], byte[]> records) {
        for (TopicPartition at : records.partitions()) {
            var got = records.records(at);
            say("records", number, ",\"p\":" + at.partition() + ",\"a\":" + got.get(0).offset()
                + ",\"b\":" + got.get(got.size() - 1).offset() + ",\"n\":" + got.size());
        }
        if (records.isEmpty()) return;
        if (mode.equals("sync")) commit();
        if (mode.equals("async")) consumer.commitAsync();
    }

    private void commit() {
        try {
            consumer.commitSync();
        } catch (KafkaException error) {
            say("commit_failed", number, ",\"error\":\"" + error.getClass().getSimpleName() + "\"");
        }
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
        String partitions = assigned.stream().map(at -> String.valueOf(at.partition())).collect(Collectors.joining(","));
        say("assigned", number, ",\"p\":[" + partitions + "]");
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
        say("revoked", number, "");
        if (!mode.equals("auto")) commit();
    }
}
