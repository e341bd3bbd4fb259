"""Model backends: they know no task. `load_model` picks one."""
