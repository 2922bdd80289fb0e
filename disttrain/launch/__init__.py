"""From an experiment to a started job: `disttrain submit`, and `disttrain status` to see how it does.

Nothing here imports torch: it all works on a login node that has none.
"""
