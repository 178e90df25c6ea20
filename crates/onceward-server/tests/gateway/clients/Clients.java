// Clients of Java as they are by default, each asking with each method, twice under one key.
//
// java -cp 'JARS/*' Clients.java URL...   prints a line per answer: client, method, status, whether
// it was a replay. What a client can't do ends the program with what it said.

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import okhttp3.MediaType;
import okhttp3.OkHttpClient;
import okhttp3.Request;
import okhttp3.RequestBody;
import org.apache.hc.client5.http.impl.classic.CloseableHttpClient;
import org.apache.hc.client5.http.impl.classic.HttpClients;
import org.apache.hc.core5.http.ContentType;
import org.apache.hc.core5.http.io.entity.EntityUtils;
import org.apache.hc.core5.http.io.support.ClassicRequestBuilder;

public final class Clients {
    private static final String REPLAYED = "Idempotency-Replayed";
    private static final String BODY = "{\"amount\":5}";
    private static final List<String> READS = List.of("GET", "HEAD", "OPTIONS");
    private static final List<String> WRITES = List.of("POST", "PUT", "PATCH", "DELETE");

    /** What came of a request. */
    record Answer(int status, boolean isReplay) {}

    /** Sends a request; one without a key has no body either. */
    interface Client {
        Answer send(String method, String url, String key) throws Exception;
    }

    public static void main(String[] urls) throws Exception {
        Map<String, Client> clients = new LinkedHashMap<>();
        HttpClient jdk = HttpClient.newHttpClient();
        CloseableHttpClient apache = HttpClients.createDefault();
        OkHttpClient okhttp = new OkHttpClient();
        clients.put("jdk", (method, url, key) -> jdk(jdk, method, url, key));
        clients.put("apache", (method, url, key) -> apache(apache, method, url, key));
        clients.put("okhttp", (method, url, key) -> okhttp(okhttp, method, url, key));
        for (String url : urls) {
            for (String name : clients.keySet()) {
                for (String method : READS) {
                    tell(name, method, clients.get(name).send(method, url, null));
                }
                for (String method : WRITES) {
                    String key = name + "-" + method;
                    tell(name, method, clients.get(name).send(method, url, key));
                    tell(name, method, clients.get(name).send(method, url, key));
                }
            }
        }
        // Threads of clients that were not closed would keep the process.
        System.exit(0);
    }

    private static void tell(String name, String method, Answer answer) {
        System.out.println(name + " " + method + " " + answer.status() + " " + answer.isReplay());
    }

    private static Answer jdk(HttpClient client, String method, String url, String key)
            throws Exception {
        HttpRequest.Builder request =
                HttpRequest.newBuilder(URI.create(url))
                        .timeout(Duration.ofSeconds(30))
                        .header("Authorization", "Bearer alice");
        if (key == null) {
            request.method(method, BodyPublishers.noBody());
        } else {
            request.header("Content-Type", "application/json")
                    .header("Idempotency-Key", key)
                    .method(method, BodyPublishers.ofString(BODY));
        }
        var answer = client.send(request.build(), BodyHandlers.ofString());
        return new Answer(answer.statusCode(), answer.headers().firstValue(REPLAYED).isPresent());
    }

    private static Answer apache(CloseableHttpClient client, String method, String url, String key)
            throws Exception {
        ClassicRequestBuilder request =
                ClassicRequestBuilder.create(method)
                        .setUri(url)
                        .addHeader("Authorization", "Bearer alice");
        if (key != null) {
            request.addHeader("Idempotency-Key", key)
                    .setEntity(BODY, ContentType.APPLICATION_JSON);
        }
        return client.execute(
                request.build(),
                answer -> {
                    EntityUtils.consume(answer.getEntity());
                    return new Answer(answer.getCode(), answer.containsHeader(REPLAYED));
                });
    }

    private static Answer okhttp(OkHttpClient client, String method, String url, String key)
            throws Exception {
        Request.Builder request =
                new Request.Builder().url(url).header("Authorization", "Bearer alice");
        if (key == null) {
            request.method(method, null);
        } else {
            request.header("Idempotency-Key", key)
                    .method(method, RequestBody.create(BODY, MediaType.get("application/json")));
        }
        try (var answer = client.newCall(request.build()).execute()) {
            answer.body().bytes();
            return new Answer(answer.code(), answer.header(REPLAYED) != null);
        }
    }
}
