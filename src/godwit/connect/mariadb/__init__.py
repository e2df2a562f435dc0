"""MariaDB: `gw.sources.mariadb`."""
