"""How long the parts of a model take on a group of units, for any kind of step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from potluck.placement.divided_work import DividedWork, Phase
from potluck.placement.links import HOP_SECONDS, LinkTable, step_bytes
from potluck.placement.times import (
    LEAST_SECONDS,
    PartTimes,
    UnitTimes,
    once_each,
    part_seconds,
)
from potluck.placement.work import ModelWork
from potluck.types.cluster import NodeId
from potluck.types.placement import Basis, worst

_EXCHANGE_SECONDS = 10e-6
_PEER_SECONDS = 15e-6
"""The cost of an exchange on a member's thread for each other member, in addition to the links. Two
members on one machine exchange 8 KiB in 13 µs if each has a core, and in 42 µs next to other work
(``benchmarks/exchange.py``). The measured latency of a link is higher, because a thread is woken
for its frames, while members poll. A small board's kernel takes longer to send than this machine's.
"""


def exchange_overhead(num_members: int) -> float:
    """Return the seconds of an exchange on each member's thread, in addition to the links."""
    return _EXCHANGE_SECONDS + _PEER_SECONDS * (num_members - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLinks:
    """The links between the members of a group.

    Each member sends to all others one after the other, while the others do the same.
    ``seconds_per_byte[a][b]`` applies to the link from member ``a`` to ``b``. ``latency_seconds``
    is that of the slowest link, ``overhead_seconds`` the additional cost of every exchange on the
    slowest member, and ``basis`` the basis of the least certain link.
    """

    latency_seconds: float
    overhead_seconds: float
    seconds_per_byte: tuple[tuple[float, ...], ...]
    basis: Basis

    def exchange_seconds(self, sent_bytes: Sequence[float]) -> float:
        """Return how long it takes until every member has received what each of the others sent."""
        members = range(len(sent_bytes))
        rates = self.seconds_per_byte
        busiest = 0.0
        for member in members:
            others = [other for other in members if other != member]
            sending = sum(sent_bytes[member] * rates[member][other] for other in others)
            receiving = sum(sent_bytes[other] * rates[other][member] for other in others)
            busiest = max(busiest, sending, receiving)
        return self.overhead_seconds + self.latency_seconds + busiest

    def gather_seconds(self, sent_bytes: Sequence[float]) -> float:
        """Return how long it takes until member 0 has received what each of the others sent."""
        receiving = sum(
            each * self.seconds_per_byte[member][0]
            for member, each in enumerate(sent_bytes)
            if member
        )
        return self.overhead_seconds + self.latency_seconds + receiving

    def pass_on_seconds(self, num_bytes: float) -> float:
        """Return how long it takes until every member has received a step that the leader passes
        on.
        """
        sending = sum(num_bytes * each for each in self.seconds_per_byte[0][1:])
        return HOP_SECONDS + self.latency_seconds + sending


def group_links(nodes: Sequence[NodeId], links: LinkTable, slowness: Sequence[float]) -> GroupLinks:
    """Return the links between members on these nodes; several members may be on one node.

    ``slowness`` says, for each member, how many times slower it is than the machine on which the
    constants in this module were measured.
    """
    pairs = [[links.link(source, target) for target in nodes] for source in nodes]
    between = [link for a, row in enumerate(pairs) for b, link in enumerate(row) if a != b]
    return GroupLinks(
        latency_seconds=max(link.latency_seconds for link in between),
        overhead_seconds=exchange_overhead(len(nodes)) * max(slowness),
        seconds_per_byte=tuple(
            tuple(0.0 if a == b else 1 / link.bytes_per_second for b, link in enumerate(row))
            for a, row in enumerate(pairs)
        ),
        basis=worst(*(link.basis for link in between)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTimes:
    """How long the parts of a model take on a group whose ``members`` have ``divided`` it.

    ``members`` are the times of each unit if it had the whole model.
    """

    members: tuple[UnitTimes, ...]
    divided: DividedWork
    links: GroupLinks

    @property
    def work(self) -> ModelWork:
        """Return what a single unit with the whole model computes."""
        return self.divided.whole

    def decode(self, num_sequences: int = 1, context_tokens: int = 512) -> PartTimes:
        """Return the times of a step that decodes; see ``UnitTimes.decode``."""
        return self._step(max(1, num_sequences), context_tokens, is_prompt=False)

    def prefill(self, num_tokens: int, context_tokens: int = 0) -> PartTimes:
        """Return the times of a chunk of a prompt; see ``UnitTimes.prefill``."""
        num_tokens = max(1, num_tokens)
        return self._step(num_tokens, max(context_tokens, num_tokens), is_prompt=True)

    def _step(self, num_tokens: int, context_tokens: int, *, is_prompt: bool) -> PartTimes:
        alone = [
            each.step(num_tokens, context_tokens, is_prompt=is_prompt) for each in self.members
        ]
        factors = [each.correction(is_prompt=is_prompt).at(num_tokens) for each in self.members]
        num_wanted = 1 if is_prompt else num_tokens
        exchange_seconds = tuple(self._exchange_seconds(num_tokens, num_wanted))

        def item_seconds(scales: list[float]) -> list[float]:
            computing = self._computing_seconds(
                scales, num_tokens, num_wanted, context_tokens, is_prompt=is_prompt
            )
            return [
                max(LEAST_SECONDS, each + exchange)
                for each, exchange in zip(computing, exchange_seconds, strict=True)
            ]

        shares = [member.speed.usable_share for member in self.members]
        seconds = item_seconds([a / b for a, b in zip(factors, shares, strict=True)])
        usable_share = 1.0
        if min(shares) < 1.0:
            # Parts are proportional to shares, so the other members may be slower when no quota
            # limits them.
            usable_share = min(1.0, sum(item_seconds(factors)) / sum(seconds))
        slowest = min(alone, key=lambda each: each.usable_share)
        return PartTimes(
            item_seconds=tuple(seconds),
            stage_seconds=max(each.stage_seconds for each in alone)
            + self.links.pass_on_seconds(step_bytes(num_tokens, self.work.hidden_size)),
            basis=worst(*(each.basis for each in alone)),
            usable_share=usable_share,
            quota_period_seconds=slowest.quota_period_seconds,
            exchange_seconds=exchange_seconds,
            exchange_basis=self.links.basis,
        )

    def _computing_seconds(
        self,
        scales: list[float],
        num_tokens: int,
        num_wanted: int,
        context_tokens: int,
        *,
        is_prompt: bool,
    ) -> list[float]:
        """Return the seconds between exchanges, by item; each member is slower by its scale."""
        model_bytes = self.work.num_bytes
        timed = list(zip(scales, self.members, strict=True))

        def computing(phases: tuple[Phase, ...], num_tokens: int, *, is_prompt: bool) -> float:
            return sum(
                max(
                    scale
                    * part_seconds(
                        member.speed,
                        part,
                        num_tokens,
                        context_tokens,
                        model_bytes,
                        is_prompt=is_prompt,
                    )
                    for (scale, member), part in zip(timed, phase.parts, strict=True)
                )
                for phase in phases
            )

        layer_seconds = max(scale * member.speed.layer_seconds.value for scale, member in timed)
        layers = once_each(
            self.divided.layers,
            lambda layer: layer_seconds + computing(layer, num_tokens, is_prompt=is_prompt),
        )
        head = computing(self.divided.head, num_wanted, is_prompt=False)
        # Only the leader samples, from all logits.
        scale, leader = timed[0]
        head += scale * num_wanted * self.work.config.vocab_size * leader.speed.seconds_per_logit
        embedding = max(
            scale * num_tokens * self.work.hidden_size * member.speed.seconds_per_embedded_value
            for scale, member in timed
        )
        return [embedding, *layers, head]

    def _exchange_seconds(self, num_tokens: int, num_wanted: int) -> list[float]:
        """Return the seconds of exchanges, by item."""
        divided = self.divided
        return [
            self._exchanging(divided.embedding, num_tokens),
            *once_each(divided.layers, lambda layer: self._exchanging(layer, num_tokens)),
            self._exchanging(divided.head, num_wanted),
        ]

    def _exchanging(self, phases: Sequence[Phase], num_tokens: int) -> float:
        links, seconds = self.links, 0.0
        for phase in phases:
            sent = [num_tokens * each for each in phase.sent_bytes]
            if sent:
                take = links.gather_seconds if phase.is_to_leader else links.exchange_seconds
                seconds += take(sent)
        return seconds
