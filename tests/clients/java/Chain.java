import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

/** Consume, transform, produce in transactions; see tests/support/chains.py for the arguments. */
public final class Chain {
    private static volatile boolean stopping;
    private static int transactions;

    private static void note(String what, String transaction, String words) {
        java.time.Instant now = java.time.Instant.now();
        System.out.println(what + " " + transaction + " " + (now.getEpochSecond() * 1_000_000_000L + now.getNano()) + " " + words);
    }

    public static void main(String[] args) throws Exception {
        Thread ending = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (java.io.IOException ended) { }
            stopping = true;
        });
        ending.setDaemon(true);
        ending.start();
        Random draw = new Random(Long.parseLong(args[5]));
        while (!stopping) {
            try {
                member(args, draw);
            } catch (KafkaException error) {
                System.out.println("begins again: " + error);
            }
        }
    }

    private static void member(String[] args, Random draw) {
        String source = args[1], sink = args[2];
        Map<String, Object> reading = new HashMap<>();
        reading.put("bootstrap.servers", args[0]);
        reading.put("group.id", args[3]);
        reading.put("isolation.level", "read_committed");
        reading.put("enable.auto.commit", false);
        reading.put("auto.offset.reset", "earliest");
        reading.put("max.poll.records", Integer.parseInt(args[7]));
        Map<String, Object> writing = Map.of("bootstrap.servers", args[0], "transactional.id", args[4]);
        StringDeserializer in = new StringDeserializer();
        StringSerializer out = new StringSerializer();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(reading, in, in);
             KafkaProducer<String, String> producer = new KafkaProducer<>(writing, out, out)) {
            producer.initTransactions();
            consumer.subscribe(List.of(source));
            while (!stopping) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofSeconds(1));
                if (records.isEmpty()) continue;
                boolean isCommitted = false;
                producer.beginTransaction();
                String name = args[4] + "-" + transactions++;
                StringBuilder made = new StringBuilder();
                for (ConsumerRecord<String, String> one : records)
                    made.append(one.partition()).append(':').append(2 * Integer.parseInt(one.value())).append(' ');
                note("begin", name, made.toString());
                try {
                    Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                    for (ConsumerRecord<String, String> one : records) {
                        String value = Integer.toString(2 * Integer.parseInt(one.value()));
                        producer.send(new ProducerRecord<>(sink, one.partition(), name, value));
                        offsets.put(new TopicPartition(source, one.partition()), new OffsetAndMetadata(one.offset() + 1));
                    }
                    producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                    if (draw.nextDouble() >= Double.parseDouble(args[6])) {
                        note("end", name, "commit");
                        producer.commitTransaction();
                        note("ended", name, "commit");
                        isCommitted = true;
                    }
                } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException fatal) {
                    throw fatal;
                } catch (TimeoutException unknown) {
                    throw unknown;
                } catch (KafkaException aborted) {
                    System.out.println("aborts: " + aborted);
                }
                if (isCommitted) continue;
                note("end", name, "abort");
                producer.abortTransaction();
                note("ended", name, "abort");
                Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
                for (TopicPartition one : consumer.assignment()) {
                    OffsetAndMetadata at = committed.get(one);
                    consumer.seek(one, at == null ? 0 : at.offset());
                }
            }
        }
    }
}
