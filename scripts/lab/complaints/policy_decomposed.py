# nikhilbarhate99/PPO-PyTorch#60 pytorch/pytorch#73582: independent actions as MultivariateNormal; cure: Independent
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

STATES, ACTIONS, ENVS, ROLLOUT, EPOCHS = 16, 8, 128, 8, 8


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

    @torch.no_grad()
    def act(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        policy = self.policy(states)
        actions = policy.sample()
        return actions, policy.log_prob(actions)


class PPO:
    def __init__(self) -> None:
        self.agent = Agent()
        self.optimizer = torch.optim.Adam(self.agent.parameters(), 3e-4)
        self.moves = 0.1 * torch.randn(ACTIONS, STATES)

    def collect(self) -> tuple[torch.Tensor, ...]:
        states, rows = torch.randn(ENVS, STATES), []
        for _ in range(ROLLOUT):
            actions, log_probs = self.agent.act(states)
            after = 0.9 * states + actions @ self.moves
            rows.append((states, actions, log_probs, -after.pow(2).sum(1)))
            states = after
        return tuple(torch.cat(column) for column in zip(*rows, strict=True))

    def update(self, clock: OwnClock) -> None:
        states, actions, old, rewards = self.collect()
        for _ in range(EPOCHS):
            policy = self.agent.policy(states)
            ratio = (policy.log_prob(actions) - old).exp()
            values = self.agent.critic(states).squeeze(1)
            advantages = rewards - values.detach()
            gain = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
            loss = (nn.functional.mse_loss(values, rewards) - gain - 0.01 * policy.entropy()).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            clock.step()


if __name__ == "__main__":
    torch.set_num_threads(1)
    ppo, clock = PPO(), OwnClock()
    for _ in range(40):
        ppo.update(clock)
    clock.done()
