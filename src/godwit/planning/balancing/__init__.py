"""Paper 4: loads kept in a range (`elb`) or even over the windows of a history (`clb`).

`pkg` and `universal_hashing` are what they are held against.
"""
