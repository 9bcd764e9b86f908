import java.time.Duration;
import java.util.*;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.state.KeyValueStore;

/** Counts words with a repartition topic and a store with a changelog, as a streams group, until its input ends. */
public final class WordCount {
    public static void main(String[] args) throws Exception {
        String bootstrap = args[0], application = args[1], lines = args[2], counts = args[3], directory = args[4];
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("application.id", application);
        config.put("group.protocol", "streams");
        config.put("state.dir", directory);
        config.put("num.stream.threads", "2");
        config.put("commit.interval.ms", "200");
        config.put("statestore.cache.max.bytes", "0");
        config.put("processing.guarantee", args[5]);
        config.put("default.key.serde", Serdes.String().getClass());
        config.put("default.value.serde", Serdes.String().getClass());
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(lines)
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.as("words"))
            .count(Materialized.<String, Long, KeyValueStore<org.apache.kafka.common.utils.Bytes, byte[]>>as("counts")
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
            .toStream().mapValues(count -> Long.toString(count)).to(counts);
        try (KafkaStreams streams = new KafkaStreams(builder.build(), config)) {
            streams.setUncaughtExceptionHandler(error -> {
                error.printStackTrace();
                return errors.SHUTDOWN;
            });
            streams.setStateListener((now, before) -> System.out.println("state=" + now));
            streams.start();
            Scanner input = new Scanner(System.in);
            while (input.hasNextLine()) {
                input.nextLine();
                for (ThreadMetadata thread : streams.metadataForLocalThreads())
                    System.out.println("thread active=" + ids(thread.activeTasks()) + " standby=" + ids(thread.standbyTasks()));
                System.out.println("asked");
            }
            streams.close(Duration.ofSeconds(30));
        }
        System.out.println("closed");
    }

    private static final class errors {
        static final org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse SHUTDOWN =
            org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
    }

    private static Set<String> ids(Set<TaskMetadata> tasks) {
        Set<String> found = new TreeSet<>();
        for (TaskMetadata task : tasks) found.add(task.taskId().toString());
        return found;
    }
}
