/* SPDX-License-Identifier: Apache-2.0 */
/* Datagrams in and out of a socket that the peer reads, does not read, floods or closes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/server/connection.h"
#include "ipc/fdpass.h"
#include "ipc/protocol.h"

static struct event_base *base;
static struct connection connection;
static int peer;
static unsigned n_messages, n_with_fd, n_discarded, n_closed, last_discarded;
static size_t last_size;
static unsigned n_replies;	/* for each message */
static uint8_t buffer[KVD_MESSAGE_MAX], big[KVD_MESSAGE_MAX + 8];

static void on_message(struct connection *c, const void *data, size_t n, int fd)
{
	n_messages++;
	if (fd >= 0) {
		n_with_fd++;
		close(fd);
	}
	last_size = n;
	for (unsigned i = 0; i < n_replies; i++)
		connection_send(c, big, 1000);
}

static void on_discarded(struct connection *c, int why)
{
	n_discarded++;
	last_discarded = (unsigned)why;
}

static void on_closed(struct connection *c)
{
	n_closed++;
	connection_deinit(c);
}

static const struct connection_ops ops = { on_message, on_discarded, on_closed };

static int set_up(void **state)
{
	int fds[2];

	n_messages = n_with_fd = n_discarded = n_closed = n_replies = 0;
	base = event_base_new();
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) < 0)
		return -1;
	peer = fds[1];
	return connection_init(&connection, base, fds[0], buffer, &ops);
}

static int tear_down(void **state)
{
	connection_deinit(&connection);
	connection_deinit(&connection);
	close(peer);
	event_base_free(base);
	return 0;
}

static void turn(void)
{
	event_base_loop(base, EVLOOP_NONBLOCK);
}

static void test_sizes(void **state)
{
	assert_int_equal(send(peer, big, KVD_MESSAGE_MAX, 0), KVD_MESSAGE_MAX);
	turn();
	assert_int_equal(n_messages, 1);
	assert_int_equal(last_size, KVD_MESSAGE_MAX);
	assert_int_equal(send(peer, big, KVD_MESSAGE_MAX + 1, 0), KVD_MESSAGE_MAX + 1);
	turn();
	assert_int_equal(n_discarded, 1);
	assert_int_equal(last_discarded, FDPASS_E_TRUNCATED);
	assert_int_equal(send(peer, big, 1, 0), 1);
	turn();
	assert_int_equal(n_messages, 2);
	assert_int_equal(n_closed, 0);
}

static int n_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static void test_descriptors_are_closed(void **state)
{
	int before = n_fds(), fds[] = { 0, 1, 2 };

	for (int i = 0; i < 10; i++) {
		assert_int_equal(fdpass_send(peer, "x", 1, fds, 3, 0), 0);
		turn();
	}
	assert_int_equal(n_discarded, 10);
	assert_int_equal(last_discarded, FDPASS_E_FDS);
	assert_int_equal(n_fds(), before);
}

static void test_peer_closes(void **state)
{
	send(peer, "x", 1, 0);
	shutdown(peer, SHUT_WR);
	turn();
	assert_int_equal(n_messages, 1);
	assert_int_equal(n_closed, 1);
	turn();
	assert_int_equal(n_closed, 1);
}

static unsigned read_all(void)
{
	unsigned n = 0;

	while (recv(peer, big, sizeof(big), 0) > 0)
		n++;
	return n;
}

/* Replies wait in the queue, in order, and meanwhile nothing more is read. */
static void test_deaf_peer_makes_no_more_replies(void **state)
{
	unsigned n_sent = 0, n_read = 0;

	n_replies = 1;
	for (int i = 0; i < 2000; i++) {
		n_sent += send(peer, "x", 1, 0) == 1;
		turn();
	}
	assert_int_equal(n_closed, 0);
	assert_int_equal(connection.n_queued, 1);
	assert_true(n_messages < n_sent);
	for (int i = 0; i < 2000; i++) {
		n_read += read_all();
		turn();
	}
	assert_int_equal(n_messages, n_sent);
	assert_int_equal(n_read, n_sent);
	assert_int_equal(connection.n_queued, 0);
}

static void test_queue_is_bounded(void **state)
{
	/* What fits the socket's buffer, and the queue behind it; one more is the end. */
	for (int i = 0; i < 100000 && !connection.dead; i++) {
		connection_send(&connection, big, 1000);
		assert_true(connection.n_queued <= CONNECTION_QUEUE_MAX);
	}
	assert_true(connection.dead);
	assert_int_equal(n_closed, 0);
	turn();
	assert_int_equal(n_closed, 1);
}

static void test_kill_inside_a_message(void **state)
{
	n_replies = 100000;
	send(peer, "x", 1, 0);
	send(peer, "y", 1, 0);
	turn();
	assert_int_equal(n_messages, 1);
	assert_int_equal(n_closed, 1);
}

static void test_peer_closes_while_replies_wait(void **state)
{
	n_replies = 1;
	for (int i = 0; i < 2000; i++) {
		send(peer, "x", 1, 0);
		turn();
	}
	assert_int_equal(connection.n_queued, 1);
	close(peer);
	turn();
	assert_int_equal(n_closed, 1);
	peer = -1;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_sizes, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_descriptors_are_closed, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_peer_closes, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_deaf_peer_makes_no_more_replies, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_queue_is_bounded, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_kill_inside_a_message, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_peer_closes_while_replies_wait, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
