/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pass-fds - run a program as a service manager does: with descriptors from 3 on, and an environment
 * that says so (sd_listen_fds(3)).
 *
 *	pass-fds FD,FD,...|none NAME:NAME:... PROGRAM [ARGUMENT...]
 *
 * The descriptors are inherited, of any numbers above those that they get.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FIRST 3

int main(int argc, char **argv)
{
	char text[32];
	int n = 0;

	if (argc < 4) {
		fprintf(stderr, "usage: pass-fds FDS NAMES PROGRAM [ARGUMENT...]\n");
		return 2;
	}
	if (strcmp(argv[1], "none") != 0) {
		for (char *word = strtok(argv[1], ","); word; word = strtok(NULL, ",")) {
			int fd = atoi(word);

			if (fd < FIRST + n || dup2(fd, FIRST + n) < 0) {
				perror("pass-fds");
				return 99;
			}
			if (fd != FIRST + n)
				close(fd);
			n++;
		}
		snprintf(text, sizeof(text), "%d", (int)getpid());
		setenv("LISTEN_PID", text, 1);
		snprintf(text, sizeof(text), "%d", n);
		setenv("LISTEN_FDS", text, 1);
		setenv("LISTEN_FDNAMES", argv[2], 1);
	}
	execv(argv[3], argv + 3);
	perror(argv[3]);
	return 99;
}
