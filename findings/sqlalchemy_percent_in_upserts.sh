#!/bin/sh
# SQLAlchemy 2.1.9: in a statement for a driver of MySQL or MariaDB, %% stands for %.  A % in the name
# of a column is written as %% everywhere, and as %%%% in the VALUES(...) of an upsert.  So
# insert(...).on_duplicate_key_update({c: insert.inserted[c]}) fails for a column `100%` (unknown
# column `100%%`), or takes the value of another column, if there is `100%%`.
# Exits with 0 as long as that is so.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet SQLAlchemy==2.1.9
"$folder/env/bin/python" - <<'PYTHON'
import sys

import sqlalchemy as sa
from sqlalchemy.dialects.mysql import insert, pymysql

table = sa.Table("t", sa.MetaData(), sa.Column("k", sa.Integer), sa.Column("100%", sa.Integer))
row = insert(table)
upsert = row.on_duplicate_key_update({"100%": row.inserted["100%"]})
statement = str(upsert.compile(dialect=pymysql.dialect()))
print("SQLAlchemy", sa.__version__)
print(statement)
sys.exit("UPDATE `100%%` = VALUES(`100%%%%`)" not in statement)
PYTHON
