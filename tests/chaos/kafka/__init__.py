"""A campaign over Kafka: drawn flows live through killed processes and brokers, row by row.

``python -m tests.chaos.kafka --rounds 200`` runs drivers in processes of their own, without Spark;
``--spark`` runs them on Spark, where lanes and executors die as well.
"""
