"""Of tests with many long cases: how many of them run without ``GODWIT_LONG``.

They are drawn, or play the same code in other surroundings, which shorter tests have too.  Those
that run are spread evenly over the test's cases.  A case that is named or asked for by ``-k`` runs.
"""

from __future__ import annotations

import os
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

__all__ = ["leave_out_long_cases", "pytest_report_header"]

USUAL = {
    "lab/tests/contract/test_controlled.py": {
        "test_an_executor_whose_lanes_were_lent_to_others_dies_in_an_epoch_and_no_row_is_lost": 1,
        "test_key_groups_move_by_themselves_and_their_rows_stay_in_order": 1,
        "test_planners_of_statistic_windows_balance_a_stream_and_tell_variance_and_bytes": 1,
        "test_whatever_is_drawn_each_row_is_processed_once_and_in_order": 1,
    },
    "lab/tests/histories/test_histories.py": {
        "test_a_baseline_stops_neither_the_stream_nor_the_loop": 1,
        "test_every_promise_is_kept": 6,
        "test_promises_that_were_broken_once_are_kept": 4,
        "test_steady_input_moves_nothing_once_it_is_even": 1,
    },
    "lab/tests/property/test_controller_crashes.py": {
        "test_wherever_the_driver_dies_the_next_controller_goes_on": 1,
    },
    "lab/tests/property/test_interval_planners.py": {"test_ssm_equals_brute_force": 1},
    "lab/tests/property/test_planners_settle.py": {
        "test_albic_comes_to_rest_within_ten_plans": 2,
        "test_albic_comes_to_rest_within_budgets_too": 1,
        "test_milp_comes_to_rest_within_ten_plans": 1,
    },
    "lab/tests/unit/cli/test_what_if.py": {"test_the_error_bar_covers_a_run_that_truly_is_so": 1},
    "lab/tests/unit/cli/reproduce/test_command.py": {
        "test_a_figure_agrees_and_two_runs_of_it_are_equal": 1,
        "test_without_its_mechanism_a_figure_of_each_paper_does_not_agree": 2,
    },
    "lab/tests/unit/control/test_latency_targets.py": {"test_what_is_predicted_is_what_comes": 1},
    "tests/chaos/test_campaign.py": {
        "test_a_checkpoint_that_was_changed_stopped_and_killed_ends_as_if_nothing_had_happened": 0,
    },
    "tests/chaos/test_kafka.py": {"test_every_row_comes_once_whatever_dies": 2},
    "tests/contract/test_drawn_flows.py": {
        "test_drawn_flows_give_what_plain_python_says_whatever_happens_to_them": 2,
    },
    "tests/contract/test_one_process.py": {
        "test_whatever_happens_each_row_is_processed_once_and_in_order": 14,
        "test_whatever_happens_to_operators_that_share_a_component_the_rows_are_the_same": 6,
        "test_whatever_happens_to_state_that_is_evicted_in_every_epoch_the_rows_are_the_same": 7,
        "test_whatever_happens_to_state_that_is_fetched_on_demand_the_rows_are_the_same": 9,
    },
    "tests/contract/test_on_spark.py": {
        "test_whatever_happens_each_row_is_processed_once_and_in_order": 5,
    },
    "tests/contract/test_resident.py": {
        "test_lanes_that_share_a_task_leave_each_row_once_and_in_order": 1,
        "test_lanes_that_stay_process_each_row_once_and_in_order": 2,
        "test_lanes_that_the_system_chose_end_at_any_moment_and_leave_each_row_once": 1,
    },
    "tests/fuzz/test_fuzz.py": {
        "test_no_variant_of_a_checkpoint_crashes_hangs_or_leads_outside": 1,
    },
    "tests/property/test_aggregates.py": {
        "test_any_split_into_epochs_and_partials_gives_what_plain_python_gives": 4,
    },
    "tests/property/test_cuts_of_text.py": {
        "test_a_line_is_good_or_bad_wherever_a_file_is_cut": 2,
    },
    "tests/property/test_debezium_streams.py": {
        "test_a_query_has_the_table_of_the_source": 1,
    },
    "tests/property/test_diverted_calls.py": {
        "test_every_row_is_processed_or_diverted_once": 5,
    },
    "tests/property/test_joins_of_tables.py": {
        "test_joined_rows_are_those_of_the_rows_that_are_left": 3,
    },
    "tests/property/test_partitioned_keys.py": {
        "test_a_running_stream_is_partitioned_anew_at_any_moment_of_it": 5,
        "test_placed_by_area_is_what_placed_by_both_is": 5,
        "test_state_that_is_partitioned_anew_is_the_same_state": 5,
    },
    "tests/property/test_text_values.py": {
        "test_a_text_is_one_value_in_csv_and_in_names_of_directories": 4,
    },
    "tests/spark/adopt/test_expressions.py": {"test_drawn_expressions_are_those_of_spark": 1},
    "tests/spark/adopt/test_own_sources.py": {
        "test_drawn_lines_of_texts_have_the_rows_that_spark_reads": 1,
    },
    "tests/streams/test_own_streams.py": {
        "test_drawn_flows_over_own_sources_give_what_plain_python_says": 1,
    },
    "tests/streams/test_streams.py": {
        "test_drawn_flows_of_many_pairs_give_what_plain_python_says": 2,
    },
    "tests/unit/connect/delta/test_partitions.py": {
        "test_values_are_read_back_by_every_reader_over_epochs_and_compactions": 10,
    },
    "tests/unit/connect/iceberg/test_source_histories.py": {
        "test_appended_rows_come_once_beside_maintenance": 1,
        "test_changes_add_up_to_the_table": 1,
    },
    "tests/unit/connect/iceberg/test_upserts.py": {
        "test_upserts_replace_rows_with_keys_of_the_epoch_and_no_others": 5,
    },
    "tests/unit/connect/postgres/test_mirror.py": {
        "test_the_target_has_the_rows_of_the_table_over_crashes_at_any_step": 2,
    },
    "tests/unit/engine/lane/test_output_time.py": {
        "test_no_row_of_a_function_is_late_for_windows_of_its_own_time": 3,
    },
    "tests/unit/engine/lane/test_two_phase_windows.py": {
        "test_all_configurations_give_the_windows_that_one_operator_gives": 2,
    },
    "tests/unit/library/test_latest.py": {
        "test_changes_add_up_to_the_newest_rows": 4,
        "test_rows_without_a_version_are_newer_than_those_before_them": 4,
    },
    "tests/unit/library/test_windows_of_rows.py": {
        "test_windows_are_the_last_rows_of_each_key_however_rows_fall_into_epochs": 4,
    },
    "tests/unit/library/windows/test_lateness.py": {
        "test_allowed_lateness_is_that_of_plain_python": 4,
    },
    "tests/unit/connect/files/test_parquet_readers.py": {
        "test_a_list_has_whole_epochs_without_a_gap_whatever_happens_meanwhile": 2,
    },
    "lab/tests/contract/test_in_simulator.py": {
        "test_whatever_happens_each_row_is_processed_once_and_in_order": 24
    },
    "lab/tests/unit/planners/test_every_planner.py": {
        "test_every_planner_keeps_every_limit_or_refuses_it_by_name": 40
    },
    "tests/unit/connect/delta/test_table.py": {
        "test_an_odd_name_works_or_is_refused_before_there_is_a_table": 20
    },
    "tests/unit/ops/test_top.py": {
        "test_no_line_is_wider_and_no_frame_higher_than_the_terminal": 20
    },
    "tests/unit/sinks/test_deletes.py": {"test_a_target_has_the_live_rows_of_the_table": 9},
    "tests/unit/test_paths.py": {"test_checkpoint_and_source_of_any_name": 12},
    "tests/unit/connect/mariadb/test_source.py": {
        "test_an_interrupted_snapshot_and_its_changes_meet_at_keys_of_every_type": 7
    },
    "tests/unit/connect/mariadb/test_mirror.py": {
        "test_the_target_has_the_rows_of_the_table_over_crashes_at_any_step": 2
    },
}
"""File → test → number of its cases."""


def pytest_report_header() -> str:
    """Say that cases are left out."""
    if "GODWIT_LONG" in os.environ:
        return "cases: all (GODWIT_LONG)"
    number = sum(map(len, USUAL.values()))
    return f"cases: some of each of {number} long tests (all with GODWIT_LONG=1)"


def leave_out_long_cases(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect cases, and refuse a test that is no longer there."""
    if "GODWIT_LONG" in os.environ or config.option.keyword:
        return
    if any("[" in argument for argument in config.args):
        return
    cases = defaultdict(list)
    for item in items:
        file, _, test = item.nodeid.partition("::")
        cases[file, test.partition("[")[0]].append(item)
    left_out = set()
    for (file, test), all_items in cases.items():
        number = USUAL.get(file, {}).get(test)
        if number is not None:
            usual = {i * len(all_items) // number for i in range(number)}
            left_out |= {item for i, item in enumerate(all_items) if i not in usual}
    for file in {file for file, _ in cases} & USUAL.keys():
        missing = [test for test in USUAL[file] if (file, test) not in cases]
        assert not missing or any("::" in argument for argument in config.args), (file, missing)
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=[*left_out])
