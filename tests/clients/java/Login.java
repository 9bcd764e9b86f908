import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import javax.security.auth.callback.Callback;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerTokenCallback;
import org.apache.kafka.common.serialization.StringSerializer;

/** Log in and produce one record: `java Login BOOTSTRAP TOPIC CA MECHANISM USER`, secrets in LOGIN_*. */
public class Login {
    /** Hands out the token of LOGIN_SECRET. */
    public static class Token implements AuthenticateCallbackHandler, OAuthBearerToken {
        @Override
        public void configure(Map<String, ?> configs, String mechanism, List<AppConfigurationEntry> entries) {}

        @Override
        public void close() {}

        @Override
        public void handle(Callback[] callbacks) {
            for (Callback callback : callbacks) {
                if (callback instanceof OAuthBearerTokenCallback) {
                    ((OAuthBearerTokenCallback) callback).token(this);
                }
            }
        }

        @Override
        public String value() {
            return System.getenv("LOGIN_SECRET");
        }

        @Override
        public Set<String> scope() {
            return Set.of();
        }

        @Override
        public long lifetimeMs() {
            return System.currentTimeMillis() + 300_000;
        }

        @Override
        public String principalName() {
            return "alice";
        }

        @Override
        public Long startTimeMs() {
            return null;
        }
    }

    public static void main(String[] args) throws Exception {
        String mechanism = args[3];
        String secret = System.getenv("LOGIN_SECRET");
        Properties config = new Properties();
        config.put("bootstrap.servers", args[0]);
        config.put("key.serializer", StringSerializer.class.getName());
        config.put("value.serializer", StringSerializer.class.getName());
        config.put("max.block.ms", "20000");
        config.put("ssl.truststore.type", "PEM");
        config.put("ssl.truststore.certificates", Files.readString(Path.of(args[2])));
        config.put("security.protocol", mechanism.equals("CERTIFICATE") ? "SSL" : "SASL_SSL");
        String options = " required username=\"" + args[4] + "\" password=\"" + secret + "\";";
        switch (mechanism) {
            case "CERTIFICATE" -> {
                config.put("ssl.keystore.type", "PEM");
                config.put("ssl.keystore.certificate.chain", Files.readString(Path.of(System.getenv("LOGIN_CERTIFICATE"))));
                config.put("ssl.keystore.key", Files.readString(Path.of(System.getenv("LOGIN_KEY"))));
            }
            case "PLAIN" -> config.put(
                    "sasl.jaas.config", "org.apache.kafka.common.security.plain.PlainLoginModule" + options);
            case "OAUTHBEARER" -> {
                config.put(
                        "sasl.jaas.config",
                        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;");
                config.put("sasl.login.callback.handler.class", Token.class.getName());
            }
            default -> config.put(
                    "sasl.jaas.config", "org.apache.kafka.common.security.scram.ScramLoginModule" + options);
        }
        if (!mechanism.equals("CERTIFICATE")) {
            config.put("sasl.mechanism", mechanism);
        }
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(config)) {
            long offset = producer.send(new ProducerRecord<>(args[1], "value")).get().offset();
            System.out.println("{\"offset\": " + offset + "}");
        } catch (ExecutionException | KafkaException error) {
            Throwable cause = error.getCause() == null ? error : error.getCause();
            String text = cause.getClass().getSimpleName() + ": " + cause.getMessage();
            System.out.println("{\"error\": \"" + text.replaceAll("[\"\\\\\\n]", " ") + "\"}");
        }
        System.exit(0);
    }
}
