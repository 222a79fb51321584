/* A program that no loader touches: linked statically, it reaches the simulated driver as a program with
   its own driver library reaches a real one. It takes memory and stays.
   Usage: bare SOCKET BYTES */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static char answer[65536];

static void ask(int driver, const char *request) {
	uint32_t length = strlen(request), at = 0;
	if (write(driver, &length, 4) != 4 || write(driver, request, length) != length)
		exit(1);
	if (read(driver, &length, 4) != 4 || length >= sizeof answer)
		exit(1);
	while (at < length) {
		ssize_t got = read(driver, answer + at, length - at);
		if (got <= 0)
			exit(1);
		at += got;
	}
	answer[length] = 0;
}

int main(int count, char **arguments) {
	struct sockaddr_un place = {.sun_family = AF_UNIX};
	int driver = socket(AF_UNIX, SOCK_STREAM, 0);
	char request[256];
	if (count != 3)
		return 64;
	strncpy(place.sun_path, arguments[1], sizeof place.sun_path - 1);
	if (connect(driver, (struct sockaddr *)&place, sizeof place))
		return 1;
	ask(driver, "{\"request\":{\"PrimaryRetain\":0}}");
	const char *created = strstr(answer, "\"Created\":");
	if (!created)
		return 2;
	snprintf(request, sizeof request, "{\"request\":{\"Allocate\":{\"context\":%llu,\"bytes\":%s}}}",
	         strtoull(created + 10, NULL, 10), arguments[2]);
	ask(driver, request);
	if (!strstr(answer, "\"Allocated\""))
		return 2;
	const char *ready = getenv("VICTIM_READY");
	if (ready)
		close(atoi(ready));
	for (;;)
		pause();
}
