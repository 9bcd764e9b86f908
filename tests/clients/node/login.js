// Log in and produce one record by KafkaJS: `login.js BOOTSTRAP TOPIC CA MECHANISM USER`, secrets in LOGIN_*.
const fs = require("fs");
const { Kafka, logLevel } = require("kafkajs");

const [bootstrap, topic, authority, mechanism, username] = process.argv.slice(2);
const secret = process.env.LOGIN_SECRET;
const ssl = { ca: [fs.readFileSync(authority)] };
let sasl;
if (mechanism === "CERTIFICATE") {
  ssl.cert = fs.readFileSync(process.env.LOGIN_CERTIFICATE);
  ssl.key = fs.readFileSync(process.env.LOGIN_KEY);
} else if (mechanism === "OAUTHBEARER") {
  sasl = { mechanism: "oauthbearer", oauthBearerProvider: async () => ({ value: secret }) };
} else {
  sasl = { mechanism: mechanism.toLowerCase(), username, password: secret };
}

async function main() {
  const retry = { retries: 3, initialRetryTime: 300 };
  const kafka = new Kafka({ brokers: bootstrap.split(","), ssl, sasl, retry, logLevel: logLevel.NOTHING });
  const producer = kafka.producer();
  await producer.connect();
  const [sent] = await producer.send({ topic, messages: [{ value: "value" }] });
  await producer.disconnect();
  return { offset: Number(sent.baseOffset) };
}

main()
  .catch((error) => ({ error: error.message }))
  .then((result) => {
    console.log(JSON.stringify(result));
    process.exit(0);
  });
