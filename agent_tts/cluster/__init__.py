"""Many machines behind one address: each carries a node and a door, which places callers on the nodes of all."""
