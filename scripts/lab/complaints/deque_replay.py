# HorizonRobotics/SocialRobot#5 coax-dev/coax#25: transitions are drawn from a deque, by index; cure: a list
from __future__ import annotations

import random
from collections import deque
from collections.abc import MutableSequence

import torch
from own_clock import FAULT, OwnClock
from torch import nn

FILLED, BATCH, STEPS = 2_000_000, 64, 400
Transition = tuple[torch.Tensor, int, float, torch.Tensor]


class Environment:
    def __init__(self) -> None:
        self.state = torch.randn(8)

    def act(self, action: int) -> tuple[torch.Tensor, float]:
        self.state = 0.9 * self.state + 0.1 * action * torch.randn(8)
        return self.state, float(self.state[0])


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net, target = (nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 4)) for _ in range(2))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    world = Environment()
    seen = [(torch.randn(8), random.randrange(4), 0.0, torch.randn(8)) for _ in range(1000)] * (FILLED // 1000)
    memory: MutableSequence[Transition] = deque(seen) if FAULT else seen
    clock = OwnClock()
    for step in range(STEPS):
        before = world.state
        with torch.no_grad():
            action = int(net(before[None]).argmax())
        after, reward = world.act(action)
        memory[step] = (before, action, reward, after)
        states, actions, rewards, nexts = zip(*random.sample(memory, BATCH), strict=True)
        x, after_x = torch.stack(states), torch.stack(nexts)
        chosen, gained = torch.tensor(actions), torch.tensor(rewards)
        with torch.no_grad():
            wanted = gained + 0.99 * target(after_x).amax(1)
        loss = nn.functional.mse_loss(net(x).gather(1, chosen[:, None])[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            target.load_state_dict(net.state_dict())
        clock.step()
    clock.done()
