"""Items of: FMGDA and FSMGDA."""
