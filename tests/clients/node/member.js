// Members of a group by KafkaJS: `node member.js BOOTSTRAP TOPIC GROUP SESSION_MS`.
const readline = require("readline");
const { Kafka, logLevel } = require("kafkajs");

const [bootstrap, topic, groupId, sessionMs] = process.argv.slice(2);
const kafka = new Kafka({ brokers: bootstrap.split(","), logLevel: logLevel.NOTHING });
const members = new Map();

function say(e, m, more) {
  process.stdout.write(JSON.stringify({ e, m, ...more }) + "\n");
}

async function join(number, mode) {
  const config = { groupId };
  if (Number(sessionMs)) config.sessionTimeout = Number(sessionMs);
  const consumer = kafka.consumer(config);
  members.set(number, consumer);
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    say("assigned", number, { p: payload.memberAssignment[topic] || [] });
  });
  consumer.on(consumer.events.REBALANCING, () => say("revoked", number));
  consumer.on(consumer.events.CRASH, ({ payload }) => say("crashed", number, { error: String(payload.error) }));
  say("joining", number);
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await consumer.run({
    autoCommit: mode === "auto",
    eachBatch: async ({ batch, resolveOffset, uncommittedOffsets, commitOffsetsIfNecessary }) => {
      const offsets = batch.messages.map((message) => Number(message.offset));
      say("records", number, { p: batch.partition, a: offsets[0], b: offsets[offsets.length - 1], n: offsets.length });
      resolveOffset(batch.lastOffset());
      if (mode === "auto") return;
      const committed = commitOffsetsIfNecessary(uncommittedOffsets());
      if (mode === "sync") await committed;
    },
  });
}

async function close(number) {
  const consumer = members.get(number);
  members.delete(number);
  const began = Date.now();
  await consumer.disconnect();
  say("closed", number, { ms: Date.now() - began });
}

const input = readline.createInterface({ input: process.stdin });
input.on("line", (line) => {
  const [command, number, mode] = line.split(" ");
  const done = command === "join" ? join(Number(number), mode) : close(Number(number));
  done.catch((error) => say("failed", Number(number), { error: String(error) }));
});
input.on("close", () => process.exit(0));
