"""The op inside other people's libraries, one module a library. Importing one registers nothing."""
