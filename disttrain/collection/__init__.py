"""Collections of graphs: all graphs in a few arrays, their files, and mini-batches cut straight from them."""
