"""The program that the compile process runs; its files import each other by their own names."""
