-- The texts and limits that scripts share: states, the layout of stored JSON records, marks. A name such as
-- `MEMBER.JOINED` is replaced by its text when a script is rendered, so that it costs nothing at run time.
-- Reads and writes no key.
local STATE = {
  EMPTY = "Empty",
  PREPARING = "PreparingRebalance",
  COMPLETING = "CompletingRebalance",
  STABLE = "Stable",
}
-- The record of a classic member: its hot numbers come first, in this order, so that a pattern reads them.
local MEMBER = {
  RECORD = '{"session_timeout_ms":%.0f,"rebalance_timeout_ms":%.0f,"join_round":%.0f,"sync_generation":%.0f'
    .. ',"added_round":%.0f,"join_by":%.0f,"joined_at":%.0f,"join_generation":%.0f,"join_token":%s,"told_leader":%s,%s',
  SESSION_TIMEOUT = '^{"session_timeout_ms":(%d+)',
  JOINED = '"join_round":%.0f,',
  SYNCED = '"sync_generation":%.0f,',
  ANY_SYNCED = '"sync_generation":%d+,',
  ADDED = '"added_round":%.0f,',
  JOIN_BY = '"join_by":(%d+)',
  ABOUT = '"instance_id":.*$',
  CONVERTED = '"converted_epoch":%s,',
}
-- The record of a member by KIP-848 or KIP-1071.
local CONSUMER = {
  HEAD = '^{"session_timeout_ms":(%d+),"epoch":(-?%d+),()',
  STABLE = '"state":"stable",',
  EPOCH = '^{"session_timeout_ms":%d+,"epoch":(-?%d+),',
  OWN_EPOCH = '^({"session_timeout_ms":%d+,"epoch":)%d+', -- not of a member that is away
  PREVIOUS_EPOCH = '(,"previous_epoch":)-?%d+',
  SESSION_TIMEOUT = '^{"session_timeout_ms":(%d+)',
  REBALANCE_TIMEOUT = ',"rebalance_timeout_ms":(%d+),',
  ANY_TIMEOUT = '^{"session_timeout_ms":%d+,',
  NEW_TIMEOUT = '{"session_timeout_ms":%.0f,',
  CLASSIC = '"classic":{',
  NO_INSTANCE = '"instance_id":"",',
}
-- A committed offset.
local OFFSET = {
  OFFSET = '^{"offset":(-?%d+)',
  TOPIC_ID = '"topic_id":"(%x*)"',
  COMMIT_TIME = '"commit_time":(%d+)',
  NEW_COMMIT_TIME = ',"commit_time":%.0f',
  LAST_COMMIT_TIME = ',"commit_time":(%d+)}$',
  ANY_COMMIT_TIME_END = '"commit_time":%d+}',
  EXPIRE_TIME = ',"expire_time":(%d+)}$',
  NEW_EXPIRE_TIME = ',"expire_time":%.0f',
  UNSTABLE = ":-1", -- the field that names the partitions with staged offsets
  UNSTABLE_RECORD = '{"offset":-1,"leader_epoch":-1,"topic_id":"","metadata":"%s","commit_time":%s}',
  METADATA = ',"metadata":"',
}
-- The header of a record batch (Kafka's RecordBatch, magic 2): its size, and the positions of its fields from 1, as
-- `string.byte` counts them. Integers are big-endian.
local BATCH = {
  HEADER_BYTES = 61,
  LENGTH = 9, -- int32: bytes after it
  BEFORE_LENGTH_ENDS = 12, -- bytes that `LENGTH` does not count
  MAGIC = 17,
  LOW_ATTRIBUTES = 23, -- the low byte of int16: bit 3, LogAppendTime; bit 6, FIRST_TIMESTAMP is a delete horizon
  LAST_OFFSET_DELTA = 24, -- int32
  FIRST_TIMESTAMP = 28, -- int64, ms
  MAX_TIMESTAMP = 36, -- int64, ms
  PRODUCER_ID = 44, -- int64
  RECORD_COUNT = 58, -- int32
}
-- Marks in a shard's index of deadlines, with negative scores: minus the time of the last sweep, and of the first sweep
-- after a gap; and the gap.
local SWEEP = {
  SWEPT = "swept",
  RESUMED = "resumed",
  STEPPED_BACK = "clock|%.0f",
  GAP_MS = 3000,
}
-- Metadata of JoinGroup, and names of its member: the size from which they are counted, and the largest sum of a group's
-- members, bytes.
local METADATA = {
  COUNTED_FROM = 1024,
  BYTES_MAX = 8388608,
}
-- The verdict on a batch of an idempotent producer, with the numbers of `log/producers_table.py`.
local VERDICT = {
  APPENDED = 0,
  DUPLICATE = 1,
  FENCED = 2,
  BEHIND = 3,
  GAP = 4,
  UNKNOWN_GAP = 5,
  OPEN_TRANSACTION = 6,
  UNCONFIRMED = 7,
  TOO_LARGE = 8,
}
local EVENT = {
  NAME_MAX = 255, -- of a client's texts
  OFFSETS_MAX = 50, -- named in one event
}
