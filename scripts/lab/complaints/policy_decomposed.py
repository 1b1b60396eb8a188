# nikhilbarhate99/PPO-PyTorch#60 pytorch/pytorch#73582: independent actions as MultivariateNormal; cure: Independent
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

STATES, ACTIONS, BATCH, EPOCHS = 16, 8, 1_024, 8


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(STATES, 64), nn.Tanh(), nn.Linear(64, ACTIONS))
        self.critic = nn.Sequential(nn.Linear(STATES, 64), nn.Tanh(), nn.Linear(64, 1))
        self.log_std = nn.Parameter(torch.zeros(ACTIONS))

    def policy(self, states: torch.Tensor) -> Distribution:
        mean = self.actor(states)
        if FAULT:
            variances = (2 * self.log_std).exp().expand_as(mean)
            return MultivariateNormal(mean, torch.diag_embed(variances))
        return Independent(Normal(mean, self.log_std.exp().expand_as(mean)), 1)


def update(agent: Agent, optimizer: torch.optim.Optimizer, clock: OwnClock) -> None:
    states = torch.randn(BATCH, STATES)
    with torch.no_grad():
        policy = agent.policy(states)
        actions = policy.sample()
        old = policy.log_prob(actions)
    rewards = -(states[:, :ACTIONS] + actions).pow(2).sum(1)
    for _ in range(EPOCHS):
        policy = agent.policy(states)
        ratio = (policy.log_prob(actions) - old).exp()
        values = agent.critic(states).squeeze(1)
        advantages = rewards - values.detach()
        gain = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        loss = (nn.functional.mse_loss(values, rewards) - gain - 0.01 * policy.entropy()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clock.step()


if __name__ == "__main__":
    torch.set_num_threads(1)
    agent, clock = Agent(), OwnClock()
    optimizer = torch.optim.Adam(agent.parameters(), 3e-4)
    for _ in range(40):
        update(agent, optimizer, clock)
    clock.done()
