// Consume, transform, produce in transactions by KafkaJS; see tests/support/chains.py for the arguments.
const { Kafka, Partitioners, logLevel } = require("kafkajs");

const [bootstrap, source, sink, groupId, transactionalId, seed, aborted, batchMax] = process.argv.slice(2);
const kafka = new Kafka({ brokers: bootstrap.split(","), logLevel: logLevel.NOTHING, retry: { retries: 20 } });
let state = Number(seed) >>> 0;
let stopping = false;
let transactions = 0;

function note(what, name, ...words) {
  console.log(what, name, `${Date.now()}000000`, ...words);
}

async function abort(begun, name) {
  note("end", name, "abort");
  await begun.abort();
  note("ended", name, "abort");
}

function draw() {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0; // a linear congruence: the seed decides the run
  return state / 2 ** 32;
}

async function transaction(producer, batch, messages) {
  const begun = await producer.transaction();
  const key = `${transactionalId}-${transactions++}`;
  const made = messages.map((one) => ({ partition: batch.partition, key, value: String(2 * Number(one.value)) }));
  note("begin", key, ...made.map((one) => `${one.partition}:${one.value}`));
  try {
    await begun.send({ topic: sink, acks: -1, messages: made });
    const offset = String(BigInt(messages[messages.length - 1].offset) + 1n);
    const partitions = [{ partition: batch.partition, offset }];
    await begun.sendOffsets({ consumerGroupId: groupId, topics: [{ topic: source, partitions }] });
  } catch (error) {
    await abort(begun, key);
    throw error;
  }
  if (draw() < Number(aborted)) {
    await abort(begun, key);
    return false;
  }
  note("end", key, "commit");
  await begun.commit();
  note("ended", key, "commit");
  return true;
}

async function member() {
  const producer = kafka.producer({
    transactionalId, idempotent: true, maxInFlightRequests: 1, createPartitioner: Partitioners.DefaultPartitioner,
  });
  const consumer = kafka.consumer({ groupId, readUncommitted: false, retry: { restartOnFailure: async () => false } });
  const crashed = new Promise((resolve) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => resolve(payload.error));
  });
  try {
    await producer.connect();
    await (await producer.transaction()).abort(); // what an earlier member left open ends before offsets are read
    await consumer.connect();
    await consumer.subscribe({ topics: [source], fromBeginning: true });
    await consumer.run({
      autoCommit: false,
      partitionsConsumedConcurrently: 1,
      eachBatchAutoResolve: false,
      eachBatch: async ({ batch, resolveOffset, heartbeat, isRunning, isStale }) => {
        for (let at = 0; at < batch.messages.length; at += Number(batchMax)) {
          if (!isRunning() || isStale()) return;
          const messages = batch.messages.slice(at, at + Number(batchMax));
          while (!(await transaction(producer, batch, messages)));
          resolveOffset(messages[messages.length - 1].offset);
          await heartbeat();
        }
      },
    });
    console.log("begins again:", String(await Promise.race([crashed, stopped])));
  } catch (error) {
    console.log("begins again:", String(error));
  } finally {
    await consumer.disconnect().catch(() => {});
    await producer.disconnect().catch(() => {});
  }
}

const stopped = new Promise((resolve) => {
  process.stdin.on("end", () => {
    stopping = true;
    resolve("stopped");
  });
  process.stdin.resume();
});

(async () => {
  while (!stopping) await member();
  process.exit(0);
})();
