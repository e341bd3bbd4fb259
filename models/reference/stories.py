"""Stories in the manner of bAbI: people move about and carry things, and questions ask where what is.

Names, things and sentences are this module's own; the answers follow from what was told.
"""

from __future__ import annotations

import random

PEOPLE = ("Ada", "Bruno", "Carla", "Emil", "Greta", "Hugo", "Ines", "Jonas")
PLACES = ("attic", "cellar", "courtyard", "library", "orchard", "stable", "tower", "workshop")
THINGS = ("basket", "candle", "hammer", "lantern", "letter", "pear", "rope", "violin")
GOES = ("{} walked to the {}.", "{} hurried to the {}.", "{} went over to the {}.", "{} ran to the {}.")
TAKES = ("{} took the {}.", "{} picked up the {}.", "{} lifted the {}.")
LEAVES = ("{} put down the {}.", "{} left the {} there.", "{} set down the {}.")
SENTENCES = 8, 40  # of a story, at least and at most
ASK = 0.25  # how often a question follows a sentence


class World:
    """Who and what is where, as far as it was told."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.people = rng.sample(PEOPLE, rng.randint(2, 4))
        self.things = rng.sample(THINGS, rng.randint(1, 3))
        self.place: dict[str, str] = {}
        self.carrier: dict[str, str] = {}

    def event(self) -> str:
        """The next sentence, and what it changes."""
        who = self.rng.choice(self.people)
        if who not in self.place or self.rng.random() < 0.5:
            return self._go(who)
        if carried := [thing for thing in self.things if self.carrier.get(thing) == who]:
            return self._leave(who, self.rng.choice(carried))
        if free := [thing for thing in self.things if self._in_reach(thing, who)]:
            return self._take(who, self.rng.choice(free))
        return self._go(who)

    def _in_reach(self, thing: str, who: str) -> bool:
        return thing not in self.carrier and self.place.get(thing, self.place[who]) == self.place[who]

    def _go(self, who: str) -> str:
        self.place[who] = self.rng.choice([place for place in PLACES if place != self.place.get(who)])
        return self.rng.choice(GOES).format(who, self.place[who])

    def _take(self, who: str, thing: str) -> str:
        self.carrier[thing] = who
        return self.rng.choice(TAKES).format(who, thing)

    def _leave(self, who: str, thing: str) -> str:
        self.place[thing] = self.place[self.carrier.pop(thing)]
        return self.rng.choice(LEAVES).format(who, thing)

    def question(self) -> str:
        """Where somebody or something is that was told of, and the answer."""
        asked = self.rng.choice([*self.place, *self.carrier])
        name = asked if asked in self.people else f"the {asked}"
        return f"Where is {name}? {self.place[self.carrier.get(asked, asked)]}"


def story(rng: random.Random) -> str:
    """One story, a sentence or question a line."""
    world, lines = World(rng), []
    for _ in range(rng.randint(*SENTENCES)):
        lines.append(world.event())
        if rng.random() < ASK:
            lines.append(world.question())
    return "\n".join(lines)
