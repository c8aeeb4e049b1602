"""A cluster on one machine: hosts are network namespaces, links are veth pairs with a token bucket."""
