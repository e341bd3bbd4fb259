"""PaTH and FoX attention: a readable definition (`reference`) beside each kernel."""
