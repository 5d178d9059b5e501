"""A node measured from outside: clients in a process of their own, and what they see."""
