"""A job whose layers are divided over unequal GPUs: stages of a pipeline, each on one GPU or on several replicas."""
