"""The sections: functions that measure and return their line of the summary, or raise `Failed` with it."""
