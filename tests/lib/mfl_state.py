# SPDX-License-Identifier: Apache-2.0
"""Databases of state directories, changed from outside as the server itself would: rows keep their checksums
(server/store/store_sums.h)."""
import contextlib
import hashlib
import os
import sqlite3
import struct

SUMS_SCHEMA = 7  # the first with checksums, a number of transactions, and tables of their own for tokens and deleted jobs


def row_sum(*values):
    sha = hashlib.sha256()
    for v in values:
        if v is None:
            sha.update(b'\5' + bytes(8))
        elif isinstance(v, int):
            sha.update(b'\1' + struct.pack('<q', v))
        elif isinstance(v, float):
            sha.update(b'\2' + struct.pack('<d', v))
        else:
            data = v.encode() if isinstance(v, str) else bytes(v)
            sha.update((b'\3' if isinstance(v, str) else b'\4') + struct.pack('<q', len(data)) + data)
    return struct.unpack('<q', sha.digest()[:8])[0]


def tables_of(db):
    return [name for name, in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'").fetchall()]


def columns_of(db, table):
    return [row[1] for row in db.execute('PRAGMA table_info(%s)' % table)]


def seal(db):
    db.create_function('row_sum', -1, row_sum)
    for table in tables_of(db):
        columns = ', '.join(c for c in columns_of(db, table) if c != 'sum')
        db.execute("UPDATE %s SET sum = row_sum('%s', %s)" % (table, table, columns))


@contextlib.contextmanager
def changed(state_dir):
    """The database, to be changed. Of a server that is stopped."""
    db = sqlite3.connect(os.path.join(state_dir, 'mfl.db'))
    try:
        with db:
            yield db
            seal(db)
    finally:
        db.close()


def drop_sums(db):
    """As it was before there were checksums."""
    db.execute('UPDATE jobs SET token = (SELECT token FROM tokens WHERE job = jobs.id LIMIT 1)')
    for table in ('tokens', 'deleted', 'round_scores', 'releases', 'spent', 'job_contracts', 'inquiries', 'model_names',
                  'model_versions', 'model_aliases', 'state_files', 'moves', 'arrivals'):
        db.execute('DROP TABLE ' + table)
    db.execute("DELETE FROM meta WHERE key IN ('commits', 'schema_sum')")
    for table in tables_of(db):
        db.execute('ALTER TABLE %s DROP COLUMN sum' % table)
    db.execute('ALTER TABLE jobs DROP COLUMN initial_sha256')
    db.execute('ALTER TABLE jobs DROP COLUMN arithmetic')
