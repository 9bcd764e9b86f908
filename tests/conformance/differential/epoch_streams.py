"""Random conversations about streams groups (KIP-1071): threads of an application with two subtopologies."""

from __future__ import annotations

from typing import Any, Final

from tests.conformance.differential.lockstep import Conversation, resolved
from tests.conformance.differential.threads import NO_TASKS, Thread, Threads

_STEPS: Final = (20, 45)
_UNCHANGED: Final = {
    "endpoint_information_epoch": 0, "instance_id": None, "rack_id": None, "rebalance_timeout": -1, "topology": None,
    "active_tasks": None, "standby_tasks": None, "warmup_tasks": None, "process_id": None, "user_endpoint": None,
    "client_tags": None, "task_offsets": None, "task_end_offsets": None, "shutdown_application": False,
}  # fmt: skip


async def streams_conversation(talk: Conversation) -> None:
    """Threads join an application, report, leave; an administrator describes the group."""
    chance = talk.chance
    threads = [Thread(f"thread-{number}") for number in range(chance.randint(1, 3))]  # each has as many of six tasks
    talk.known = Threads(threads)
    for _ in range(chance.randint(*_STEPS)):
        await _step(talk, chance.choice(threads))
        if chance.random() < 0.3:
            await talk.ask(
                89, chance.choice((0, 1)), group_ids=(talk.group,), include_authorized_operations=chance.random() < 0.5,
                include_topology_description=chance.random() < 0.5,
            )  # fmt: skip


async def _step(talk: Conversation, thread: Thread) -> None:
    chance = talk.chance
    if not thread.is_in or chance.random() < 0.05:
        answer = await _heartbeat(
            talk, thread, 0, topology=_topology(), process_id=f"process-{thread.name}", rebalance_timeout=120_000,
            client_tags=[], endpoint_information_epoch=-1, **NO_TASKS,
        )  # fmt: skip
        thread.is_in = answer["error_code"] == "none"
        return
    action = chance.choices(["own", "plain", "other epoch", "leave", "commit", "odd"], [6, 3, 1, 0.8, 1, 0.7])[0]
    if action == "own":
        await _heartbeat(talk, thread, thread.epoch, **thread.tasks)
    elif action == "plain":
        await _heartbeat(talk, thread, thread.epoch)
    elif action == "other epoch":
        epoch = thread.epoch + chance.choice((1, -1, -1, -2))
        if epoch > 0:
            note = "previous epoch" if epoch == thread.previous_epoch else ""
            await _heartbeat(talk, thread, epoch, note, **chance.choice(({}, thread.tasks, NO_TASKS)))
    elif action == "leave":
        await _heartbeat(talk, thread, -1)
        thread.is_in, thread.owned, thread.epoch = False, {}, 0
    elif action == "commit":
        await _commit(talk, thread)
    else:
        await _odd(talk, thread)


def _topology(epoch: int = 0) -> dict[str, Any]:
    nothing: dict[str, Any] = {
        "source_topic_regex": [], "state_changelog_topics": [], "repartition_sink_topics": [],
        "repartition_source_topics": [], "copartition_groups": [],
    }  # fmt: skip
    sources = {"0": "t4", "1": "t2"}
    subtopologies = [{"subtopology_id": one, "source_topics": [topic], **nothing} for one, topic in sources.items()]
    return {"epoch": epoch, "subtopologies": subtopologies}


async def _heartbeat(talk: Conversation, thread: Thread, epoch: int, note: str = "", **fields: Any) -> Any:
    values = {"member_id": thread.name, "member_epoch": epoch, **_UNCHANGED, **fields}
    talk.known.asking, talk.known.reported = thread, resolved(values["active_tasks"], talk.targets.tidegate)
    answer = await talk.ask(88, talk.chance.choice((0, 1)), thread.name, note, **values)
    if epoch >= 0:
        thread.follow(talk.last)
    return answer


async def _commit(talk: Conversation, thread: Thread) -> None:
    """OffsetCommit of a source, at its epoch or a newer one; at an older one it depends on the tasks."""
    chance = talk.chance
    partition = {"partition_index": chance.randrange(2), "committed_offset": chance.randrange(100)}
    partition |= {"committed_leader_epoch": -1, "committed_metadata": ""}
    epoch = thread.epoch + chance.choice((0, 0, 1))
    await talk.ask(
        8, 9, thread.name, generation_id_or_member_epoch=epoch, member_id=thread.name, group_instance_id=None,
        topics=[{"name": chance.choice(("t4", "t2")), "partitions": [partition]}],
    )  # fmt: skip


async def _odd(talk: Conversation, thread: Thread) -> None:
    """A request that should be refused, mostly."""
    newcomer = Thread("newcomer")
    join = {"process_id": "p", "rebalance_timeout": 120_000, "client_tags": [], **NO_TASKS}
    await talk.chance.choice([
        lambda: _heartbeat(talk, Thread("stranger"), 3),
        lambda: _heartbeat(talk, thread, -3),
        lambda: _heartbeat(talk, thread, -2),
        lambda: _heartbeat(talk, thread, thread.epoch, active_tasks=[]),
        lambda: _heartbeat(talk, thread, thread.epoch, topology=_topology()),
        lambda: _heartbeat(talk, newcomer, 0, topology=_topology(epoch=1), **join),
        lambda: _heartbeat(talk, newcomer, 0, topology=None, **join),
        lambda: talk.ask(69, 1, group_ids=(talk.group,), include_authorized_operations=False),
        lambda: talk.ask(42, 2, groups_names=(talk.group,)),
    ])()  # fmt: skip
