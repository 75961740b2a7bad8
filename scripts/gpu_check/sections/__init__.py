"""The sections: functions that measure, return their line of the summary, and raise `Failed` with it where something is wrong."""
