"""disttrain: train graph neural networks on heterogeneous graphs over several GPUs and machines, from one YAML file."""

__version__ = "0.1.0"
