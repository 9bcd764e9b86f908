import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.*;

/** A share consumer that releases every seventh record once, and the administration of its group: prints what it found. */
public final class ShareReader {
    public static void main(String[] args) throws Exception {
        String bootstrap = args[0], topic = args[1], group = args[2];
        int records = 300;
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1))).all().get();
            ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(
                new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET)))).all().get();
            Properties p = new Properties();
            p.put("bootstrap.servers", bootstrap);
            try (KafkaProducer<String, String> producer = new KafkaProducer<>(p, new StringSerializer(), new StringSerializer())) {
                for (int i = 0; i < records; i++) producer.send(new ProducerRecord<>(topic, i % 2, null, "" + i));
            }
            Properties c = new Properties();
            c.put("bootstrap.servers", bootstrap);
            c.put("group.id", group);
            c.put("share.acknowledgement.mode", "explicit");
            Map<String, Integer> seen = new TreeMap<>();
            Set<String> done = new TreeSet<>();
            long end = System.currentTimeMillis() + 60000;
            try (KafkaShareConsumer<String, String> one = new KafkaShareConsumer<>(c, new StringDeserializer(), new StringDeserializer())) {
                one.subscribe(List.of(topic));
                while (done.size() < records && System.currentTimeMillis() < end) {
                    for (ConsumerRecord<String, String> r : one.poll(Duration.ofMillis(500))) {
                        int times = seen.merge(r.value(), 1, Integer::sum);
                        if (Integer.parseInt(r.value()) % 7 == 0 && times == 1) {
                            one.acknowledge(r, AcknowledgeType.RELEASE);
                        } else {
                            one.acknowledge(r, AcknowledgeType.ACCEPT);
                            done.add(r.value());
                        }
                    }
                    for (var failed : one.commitSync().entrySet())
                        if (failed.getValue().isPresent()) throw failed.getValue().get();
                }
                ShareGroupDescription d = admin.describeShareGroups(List.of(group)).all().get().get(group);
                System.out.println("state=" + d.groupState() + " members=" + d.members().size());
            }
            long twice = seen.values().stream().filter(n -> n == 2).count();
            System.out.println("done=" + done.size() + " twice=" + twice + " max=" + Collections.max(seen.values()));
            System.out.println("offsets=" + admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec())).partitionsToOffsetInfo(group).get());
            admin.deleteShareGroups(List.of(group)).all().get();
            System.out.println("deleted");
        }
    }
}
