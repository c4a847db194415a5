"""The section [security]: what services allow others to do."""

from penstock.config.section import Section


class SecurityConfig(Section):
    """[security] The protection of services."""

    insecure: bool = False
    """Whether services may listen where other hosts can reach them. They neither authenticate nor encrypt, so that
    whatever reaches a port can read, change and end the run; set it only in a private network. false: services listen
    on loopback and on Unix sockets only."""
