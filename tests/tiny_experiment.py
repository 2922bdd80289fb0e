"""The smallest experiment that is whole, for tests that start nothing or hardly anything."""

TINY = """\
data:
  source: generated
  nodes: {paper: {num_nodes: 60, features: 6}}
  edges: {"paper,cites,paper": {num_edges: 100}}
  num_classes: 3
task: {kind: node_classification}
model: {kind: hetero_conv, hidden: 8}
sampling: {fanout: [2, 2]}
"""
