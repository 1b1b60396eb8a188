"""Why a job hangs, in words and as a part of pages."""
