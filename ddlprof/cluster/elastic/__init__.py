"""How many GPUs and which batch each of several jobs should get: Saxena et al., Effective Elastic Scaling, 2020."""
